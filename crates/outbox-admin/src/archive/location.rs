//! The place of an archive, as an option names it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use object_store::path::Path;
use url::Url;

/// The place of an archive. Its text contains no credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchiveLocation {
    /// An existing directory.
    Directory(PathBuf),
    /// A bucket of S3, or of a service with the same API.
    S3(Bucket),
    CloudStorage(Bucket),
}

/// A bucket, and the part of its names that belongs to the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    pub name: String,
    /// Prefix of the names of all objects. Empty for the whole bucket.
    pub prefix: Path,
}

/// A text that is no location. The message does not repeat the text, which may contain a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    #[error(
        "a directory, or a URL of the form file:///DIRECTORY, gs://BUCKET/PREFIX or s3://BUCKET/PREFIX"
    )]
    Form,
    #[error("the scheme of the URL must be file, gs or s3")]
    Scheme,
    #[error(
        "the URL must not contain a user name or a password: credentials come from the environment or from the \
         metadata server"
    )]
    UserInfo,
    #[error("the URL must not contain a port, a query or a fragment")]
    Extra,
    #[error("the URL must name a bucket, or for the scheme file an absolute path without a host")]
    Host,
}

impl FromStr for ArchiveLocation {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        if text.is_empty() {
            return Err(LocationError::Form);
        }
        if !text.contains("://") {
            return Ok(Self::Directory(PathBuf::from(text)));
        }
        let url = Url::parse(text).map_err(|_| LocationError::Form)?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(LocationError::UserInfo);
        }
        if url.port().is_some() || url.query().is_some() || url.fragment().is_some() {
            return Err(LocationError::Extra);
        }
        match url.scheme() {
            "file" => url.to_file_path().map(Self::Directory).map_err(|()| LocationError::Host),
            "s3" => bucket_of(&url).map(Self::S3),
            "gs" => bucket_of(&url).map(Self::CloudStorage),
            _ => Err(LocationError::Scheme),
        }
    }
}

fn bucket_of(url: &Url) -> Result<Bucket, LocationError> {
    let name = url.host_str().filter(|name| !name.is_empty()).ok_or(LocationError::Host)?;
    let prefix = Path::from_url_path(url.path()).map_err(|_| LocationError::Form)?;
    Ok(Bucket { name: name.to_owned(), prefix })
}

impl fmt::Display for ArchiveLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::S3(Bucket { name, prefix }) => write!(f, "s3://{name}/{prefix}"),
            Self::CloudStorage(Bucket { name, prefix }) => write!(f, "gs://{name}/{prefix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<ArchiveLocation, LocationError> {
        text.parse()
    }

    #[test]
    fn a_path_and_a_file_url_are_directories() {
        let directory = |path: &str| Ok(ArchiveLocation::Directory(PathBuf::from(path)));
        assert_eq!(parsed("/mnt/archive"), directory("/mnt/archive"));
        assert_eq!(parsed("file:///mnt/old%20rows"), directory("/mnt/old rows"));
        assert_eq!(parsed("file://host/mnt"), Err(LocationError::Host));
    }

    #[test]
    fn buckets_have_an_optional_prefix() {
        let bucket = |name: &str, prefix| Bucket { name: name.to_owned(), prefix };
        let prefix = Path::from("outbox/old");
        assert_eq!(
            parsed("gs://a_b"),
            Ok(ArchiveLocation::CloudStorage(bucket("a_b", Path::ROOT)))
        );
        assert_eq!(parsed("s3://a/outbox/old/"), Ok(ArchiveLocation::S3(bucket("a", prefix))));
        assert_eq!(parsed("s3:///outbox"), Err(LocationError::Host));
    }

    #[test]
    fn credentials_in_a_url_are_refused_and_not_repeated() {
        for text in ["s3://AKIA:hunter2@bucket", "gs://user@bucket", "file://user:hunter2@/mnt"] {
            let refused = parsed(text).expect_err(text);
            assert!(!refused.to_string().contains("hunter2"), "{refused}");
        }
        assert_eq!(parsed("s3://AKIA:hunter2@bucket"), Err(LocationError::UserInfo));
        assert_eq!(parsed("s3://bucket?token=x"), Err(LocationError::Extra));
        assert_eq!(parsed("https://bucket.example"), Err(LocationError::Scheme));
        assert_eq!(parsed(""), Err(LocationError::Form));
    }
}
