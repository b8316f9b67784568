//! Runs every file of the fuzz corpus through the checks of the fuzz targets.

use std::io;
use std::path::{Path, PathBuf};

use crate::{condenser, decoder, frame};

#[test]
fn every_corpus_file_of_the_frame_target_holds() {
    for (path, bytes) in corpus("fuzz/corpus/frame").unwrap() {
        eprintln!("{}", path.display());
        frame::check(&bytes);
    }
}

#[test]
fn every_corpus_file_of_the_decoder_target_holds() {
    for (path, bytes) in corpus("fuzz/corpus/decoder").unwrap() {
        eprintln!("{}", path.display());
        decoder::check(&bytes);
    }
}

#[test]
fn every_corpus_file_of_the_condenser_target_holds() {
    for (path, bytes) in corpus("fuzz/corpus/condenser").unwrap() {
        eprintln!("{}", path.display());
        condenser::check(&bytes);
    }
}

fn corpus(folder: &str) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        let bytes = std::fs::read(&path)?;
        files.push((path, bytes));
    }
    assert!(!files.is_empty(), "no corpus in {}", folder.display());
    Ok(files)
}
