//! The calls that read and replace the IAM policy of a topic or a subscription.
//!
//! The emulator stores policies and enforces none.

use tonic::Status;

use crate::store::broker::{Broker, missing};
use crate::store::policy::Policy;
use crate::wire::names;

/// `google.iam.v1.GetIamPolicyRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetIamPolicyRequest {
    #[prost(string, tag = "1")]
    pub(crate) resource: String,
}

/// `google.iam.v1.SetIamPolicyRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SetIamPolicyRequest {
    #[prost(string, tag = "1")]
    pub(crate) resource: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) policy: Option<Policy>,
}

/// Returns the policy. A resource without one has an empty policy.
pub(crate) fn get_policy(broker: &Broker, request: &GetIamPolicyRequest) -> Result<Policy, Status> {
    refuse_missing(broker, &request.resource)?;
    Ok(broker.policies.get(&request.resource).cloned().unwrap_or_default())
}

/// Replaces the policy, unless it has changed since it was read.
pub(crate) fn set_policy(
    broker: &mut Broker,
    request: SetIamPolicyRequest,
) -> Result<Policy, Status> {
    refuse_missing(broker, &request.resource)?;
    let mut policy = request.policy.unwrap_or_default();
    let before = broker.policies.get(&request.resource).map(|its| its.etag.clone());
    let before = before.unwrap_or_default();
    if !policy.etag.is_empty() && policy.etag != before {
        return Err(Status::aborted("the policy has changed since it was read"));
    }
    policy.etag = broker.new_message_id().to_be_bytes().to_vec();
    broker.policies.insert(request.resource, policy.clone());
    Ok(policy)
}

fn refuse_missing(broker: &Broker, resource: &str) -> Result<(), Status> {
    if broker.subscriptions.contains_key(resource) {
        return Ok(());
    }
    match resource.contains("/subscriptions/") {
        true => Err(missing(names::check_subscription(resource), "subscription", resource)),
        false => broker.topic(resource).map(drop),
    }
}
