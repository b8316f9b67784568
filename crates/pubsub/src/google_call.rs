//! A unary call of a Google service with types of our own, on an authorised channel.

use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message;
use tonic::Status;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use crate::channel::AuthorisedChannel;

/// The time limit of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A method and the field of its request that routes the call.
pub(crate) struct Method {
    pub(crate) path: &'static str,
    pub(crate) field: &'static str,
}

impl Method {
    pub(crate) async fn call<Q, R>(
        &self,
        authorised: &AuthorisedChannel,
        name: &str,
        message: Q,
    ) -> Result<R, Status>
    where
        Q: Message + Send + Sync + 'static,
        R: Message + Default + Send + Sync + 'static,
    {
        let mut request = authorised.request(self.field, name, message).await?;
        request.set_timeout(CALL_TIMEOUT);
        let mut calls = Grpc::new(authorised.channel());
        let is_gone = |error| Status::unavailable(format!("no connection: {error}"));
        calls.ready().await.map_err(is_gone)?;
        let path = PathAndQuery::from_static(self.path);
        let answer = calls.unary(request, path, ProstCodec::<Q, R>::default()).await;
        if let Err(status) = &answer {
            authorised.failed(status);
        }
        answer.map(tonic::Response::into_inner)
    }
}
