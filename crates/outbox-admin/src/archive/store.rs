//! Objects of the archive: written in one request, and read back before rows are deleted.
//!
//! An object has at most 32 MiB before compression, so one request is enough. A multipart upload
//! that is interrupted would leave parts behind, which cost money and which nobody sees.

use std::error::Error as _;
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flate2::write::{GzDecoder, GzEncoder};
use flate2::{Compression, Crc};
use futures_util::TryStreamExt as _;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::{CredentialProvider, StaticCredentialProvider};
use object_store::gcp::{GcpCredential, GoogleCloudStorage, GoogleCloudStorageBuilder};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt as _, PutPayload, RetryConfig,
};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use walrelay_errors::Chain;
use walrelay_pubsub::{GoogleTokens, PubsubError};

use super::error::{ArchiveError, ArchiveProblem, reason_of};
use super::location::{ArchiveLocation, Bucket};

/// The longest time of one request. The slowest link that is good enough uploads 300 KB/s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The time within which a failed request is sent again.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// Most repetitions of a request.
const RETRIES_MAX: usize = 4;

/// The folder of objects that only test the permissions.
const CHECK_FOLDER: &str = "walrelay-check";

/// Where deleted rows are kept, and how to get there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    pub location: ArchiveLocation,
    pub environment: StoreEnvironment,
}

/// The variables of the environment that belong to a store.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoreEnvironment {
    /// The variables of S3, whose names begin with `AWS_`.
    pub aws: Vec<(String, String)>,
    /// Address of an emulator of Cloud Storage, which needs no credentials.
    pub storage_emulator: Option<String>,
}

impl fmt::Debug for StoreEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secrets.
        let names = self.aws.iter().map(|(name, _)| name);
        f.debug_struct("StoreEnvironment").field("names", &names.collect::<Vec<_>>()).finish()
    }
}

pub(crate) struct ArchiveStore {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    location: ArchiveLocation,
}

/// The beginning of an object's name.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ObjectName<'a> {
    /// Rows of a table at a time.
    Time(SystemTime),
    /// A part of a partition. The same rows have the same name, so an attempt that is repeated
    /// writes no second object.
    Partition { name: &'a str, part: u64 },
}

pub(crate) struct ObjectRows {
    /// Complete lines, one per row.
    pub(crate) lines: String,
    /// Sum of the hashes of all ids.
    pub(crate) checksum: i128,
}

impl ArchiveStore {
    /// Opens an archive, and gets its credentials.
    ///
    /// # Errors
    ///
    /// A directory does not exist, or there are no credentials.
    pub(crate) async fn open(archive: &Archive) -> Result<Self, ArchiveError> {
        let Archive { location, environment } = archive;
        let failed = |error| ArchiveError::of_store("open", location.clone(), &error);
        let (store, prefix): (Arc<dyn ObjectStore>, Path) = match location {
            // A missing directory is an unmounted volume. Rows must not go to the container's own
            // disk.
            ArchiveLocation::Directory(path) => {
                let store = LocalFileSystem::new_with_prefix(path).map_err(failed)?;
                (Arc::new(store.with_fsync(true).with_automatic_cleanup(true)), Path::ROOT)
            }
            ArchiveLocation::S3(bucket) => {
                let store = s3(bucket, &environment.aws).map_err(failed)?;
                let credentials = store.credentials().get_credential().await;
                credentials.map_err(|error| no_credentials(location, reason_of(&error)))?;
                (Arc::new(store), bucket.prefix.clone())
            }
            ArchiveLocation::CloudStorage(bucket) => {
                let credentials = google_credentials(location, environment).await?;
                let emulator = environment.storage_emulator.as_deref();
                let store = cloud_storage(bucket, credentials, emulator).map_err(failed)?;
                (Arc::new(store), bucket.prefix.clone())
            }
        };
        Ok(Self { store, prefix, location: location.clone() })
    }

    /// Writes an object to the folder of a table, and compares what is stored with the lines. An
    /// object of a partition that is stored already is only compared.
    ///
    /// # Errors
    ///
    /// The object reads differently.
    pub(crate) async fn write(
        &self,
        table: &str,
        name: ObjectName<'_>,
        rows: ObjectRows,
    ) -> Result<(), ArchiveError> {
        let file = file_name(name, &rows);
        let path = self.prefix.clone().join(table).join(file.as_str());
        let is_stored_already = match name {
            ObjectName::Time(_) => false,
            // Without permission to list, a missing object is reported as forbidden.
            ObjectName::Partition { .. } => {
                self.reads_as(&path, &rows.lines).await.unwrap_or(false)
            }
        };
        match is_stored_already {
            true => Ok(()),
            false => self.put(&path, rows.lines).await,
        }
    }

    /// Writes a small object and reads it back, with the permissions that archiving needs. Deletes
    /// the object if that is permitted.
    pub(crate) async fn try_out(&self, now: SystemTime) -> Result<(), ArchiveError> {
        let path = self.prefix.clone().join(CHECK_FOLDER).join(format!("{}.gz", millis(now)));
        self.put(&path, "a check of walrelay\n".to_owned()).await?;
        if let Err(error) = self.store.delete(&path).await {
            tracing::debug!(error = %Chain(&error), "the object of a check stays in the archive");
        }
        Ok(())
    }

    async fn put(&self, path: &Path, lines: String) -> Result<(), ArchiveError> {
        let lines = Arc::new(lines);
        let to_compress = Arc::clone(&lines);
        let compressed = spawn_blocking(move || compress(&to_compress)).await;
        let object = compressed
            .map_err(io::Error::other)
            .flatten()
            .map_err(|error| self.other("compress rows for", error.to_string()))?;
        let stored = self.store.put(path, PutPayload::from(object)).await;
        stored.map_err(|error| self.failed("write to", &error))?;
        match self.reads_as(path, &lines).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.other("verify", format!("the object {path} reads differently"))),
            Err(error) => Err(self.failed("read back from", &error)),
        }
    }

    /// Returns whether an object contains exactly these lines. The decoder also checks its own
    /// checksum.
    async fn reads_as(&self, path: &Path, lines: &str) -> Result<bool, object_store::Error> {
        let mut chunks = self.store.get(path).await?.into_stream();
        let mut decoder = GzDecoder::new(Expected { rest: lines.as_bytes() });
        while let Some(chunk) = chunks.try_next().await? {
            if decoder.write_all(&chunk).is_err() {
                return Ok(false);
            }
        }
        Ok(decoder.finish().is_ok_and(|expected| expected.rest.is_empty()))
    }

    fn failed(&self, action: &'static str, error: &object_store::Error) -> ArchiveError {
        ArchiveError::of_store(action, self.location.clone(), error)
    }

    fn other(&self, action: &'static str, reason: String) -> ArchiveError {
        ArchiveError::new(action, self.location.clone(), ArchiveProblem::Other, reason)
    }
}

/// Checks that an archive can be written and read.
pub async fn try_out(archive: &Archive, patience: Duration) -> Result<(), ArchiveError> {
    let tried = async {
        let store = ArchiveStore::open(archive).await?;
        store.try_out(SystemTime::now()).await
    };
    timeout(patience, tried).await.unwrap_or_else(|_| {
        let reason = format!("no answer within {} s", patience.as_secs());
        let location = archive.location.clone();
        Err(ArchiveError::new("open", location, ArchiveProblem::Unreachable, reason))
    })
}

/// The lines that an object must contain, and that were not read yet.
struct Expected<'a> {
    rest: &'a [u8],
}

impl Write for Expected<'_> {
    fn write(&mut self, read: &[u8]) -> io::Result<usize> {
        self.rest = self.rest.strip_prefix(read).ok_or(ErrorKind::InvalidData)?;
        Ok(read.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn compress(lines: &str) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(lines.as_bytes())?;
    encoder.finish()
}

/// Returns a name that sorts by time. Objects of the same millisecond differ in the checksum.
/// Objects of a partition have a second checksum, because the status of their rows may change.
fn file_name(name: ObjectName<'_>, rows: &ObjectRows) -> String {
    let checksum = rows.checksum;
    match name {
        ObjectName::Time(now) => format!("{}-{checksum:x}.ndjson.gz", millis(now)),
        ObjectName::Partition { name, part } => {
            let mut content = Crc::new();
            content.update(rows.lines.as_bytes());
            format!("{name}-{part:05}-{checksum:x}-{:08x}.ndjson.gz", content.sum())
        }
    }
}

fn millis(now: SystemTime) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:015}", since.as_millis())
}

fn retries() -> RetryConfig {
    let (max_retries, retry_timeout) = (RETRIES_MAX, RETRY_TIMEOUT);
    RetryConfig { backoff: BackoffConfig::default(), max_retries, retry_timeout }
}

/// Creates the client of a bucket. The variables are those of `object_store`, for example
/// `AWS_REGION` and `AWS_ENDPOINT_URL`.
fn s3(bucket: &Bucket, variables: &[(String, String)]) -> Result<AmazonS3, object_store::Error> {
    let options = ClientOptions::new().with_timeout(REQUEST_TIMEOUT);
    let builder = AmazonS3Builder::new().with_client_options(options).with_retry(retries());
    let configured = variables.iter().fold(builder, |builder, (name, value)| {
        match name.to_ascii_lowercase().parse() {
            Ok(key) => builder.with_config(key, value),
            Err(_) => builder,
        }
    });
    configured.with_bucket_name(&bucket.name).build()
}

fn cloud_storage(
    bucket: &Bucket,
    credentials: GoogleCredentials,
    emulator: Option<&str>,
) -> Result<GoogleCloudStorage, object_store::Error> {
    let options = ClientOptions::new().with_timeout(REQUEST_TIMEOUT);
    let builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&bucket.name)
        .with_retry(retries())
        .with_credentials(credentials);
    match emulator {
        None => builder.with_client_options(options).build(),
        Some(address) => {
            let url = match address.contains("://") {
                true => address.to_owned(),
                false => format!("http://{address}"),
            };
            builder.with_client_options(options.with_allow_http(true)).with_base_url(&url).build()
        }
    }
}

type GoogleCredentials = Arc<dyn CredentialProvider<Credential = GcpCredential>>;

/// Finds the credentials that Pub/Sub also uses, and gets a first token.
async fn google_credentials(
    location: &ArchiveLocation,
    environment: &StoreEnvironment,
) -> Result<GoogleCredentials, ArchiveError> {
    if environment.storage_emulator.is_some() {
        let none = GcpCredential { bearer: String::new() };
        return Ok(Arc::new(StaticCredentialProvider::new(none)));
    }
    // Shows only the library's own text, which says more than the first error.
    let failed = |error: PubsubError| {
        let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        no_credentials(location, cause)
    };
    let tokens = GoogleTokens::application_default().map_err(failed)?;
    tokens.get().await.map_err(failed)?;
    Ok(Arc::new(TokenProvider(tokens)))
}

fn no_credentials(location: &ArchiveLocation, reason: String) -> ArchiveError {
    let problem = ArchiveProblem::Credentials;
    ArchiveError::new("open", location.clone(), problem, reason)
}

#[derive(Debug)]
struct TokenProvider(GoogleTokens);

#[async_trait::async_trait]
impl CredentialProvider for TokenProvider {
    type Credential = GcpCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<GcpCredential>> {
        let token = self.0.get().await;
        let failed = |error| object_store::Error::Unauthenticated {
            path: String::new(),
            source: Box::new(error),
        };
        token.map(|bearer| Arc::new(GcpCredential { bearer })).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use walrelay_errors::{Code, Coded as _};

    use super::*;

    struct Directory(std::path::PathBuf);

    impl Directory {
        fn create(test: &str) -> Self {
            let name = format!("walrelay-archive-{test}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).expect("a directory");
            Self(path)
        }

        async fn open(&self) -> Result<ArchiveStore, ArchiveError> {
            let location = format!("file://{}", self.0.display()).parse().expect("a location");
            ArchiveStore::open(&Archive { location, environment: StoreEnvironment::default() })
                .await
        }

        fn files(&self) -> Vec<std::path::PathBuf> {
            let folders = std::fs::read_dir(&self.0).expect("folders");
            let files = folders.flat_map(|folder| {
                std::fs::read_dir(folder.expect("a folder").path()).expect("files")
            });
            files.map(|file| file.expect("a file").path()).collect()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    fn rows(lines: &str) -> ObjectRows {
        ObjectRows { lines: lines.to_owned(), checksum: 7 }
    }

    #[tokio::test]
    async fn an_object_that_reads_differently_is_refused() {
        let directory = Directory::create("differs");
        let store = directory.open().await.expect("opened");
        let lines = "{}\n".repeat(100_000);
        let name = ObjectName::Time(SystemTime::UNIX_EPOCH);
        store.write("public.app_outbox", name, rows(&lines)).await.expect("written");
        let path = Path::from("public.app_outbox/000000000000000-7.ndjson.gz");
        assert!(store.reads_as(&path, &lines).await.expect("read"));
        let other = lines.replacen("{}", "[]", 1);
        assert!(!store.reads_as(&path, &other).await.expect("read"));
        assert!(!store.reads_as(&path, &lines[3..]).await.expect("read"));
        let whole = std::fs::read(&directory.files()[0]).expect("a file");
        std::fs::write(&directory.files()[0], &whole[..whole.len() - 9]).expect("cut");
        assert!(!store.reads_as(&path, &lines).await.expect("read"));
    }

    #[tokio::test]
    async fn a_directory_that_is_missing_is_not_created() {
        let directory = Directory::create("missing");
        std::fs::remove_dir_all(&directory.0).expect("removed");
        let Err(error) = directory.open().await else { panic!("opened") };
        assert_eq!(error.code(), Code::ArchiveMissing, "{error}");
        assert!(!directory.0.exists());
    }

    #[tokio::test]
    async fn a_partition_that_is_archived_again_has_no_second_object() {
        let directory = Directory::create("again");
        let store = directory.open().await.expect("opened");
        let name = ObjectName::Partition { name: "outbox_2020", part: 1 };
        for lines in ["a\n", "a\n", "b\n"] {
            store.write("public.app_outbox", name, rows(lines)).await.expect("written");
        }
        assert_eq!(directory.files().len(), 2);
    }

    #[tokio::test]
    async fn a_check_leaves_nothing_behind() {
        let directory = Directory::create("check");
        let store = directory.open().await.expect("opened");
        store.try_out(SystemTime::now()).await.expect("written and read");
        assert_eq!(std::fs::read_dir(&directory.0).expect("a directory").count(), 0);
    }

    #[test]
    fn the_values_of_variables_are_not_shown() {
        let aws = vec![("AWS_SECRET_ACCESS_KEY".to_owned(), "hunter2".to_owned())];
        let environment = StoreEnvironment { aws, storage_emulator: None };
        assert!(!format!("{environment:?}").contains("hunter2"));
    }
}
