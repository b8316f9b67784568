//! Grants a role on a topic or a subscription, and leaves the rest of its IAM policy unchanged.

use tonic::Status;

use crate::channel::AuthorisedChannel;
use crate::classify::call_code;
use crate::config::Endpoint;
use crate::error::{Answer, PubsubError};
use crate::google_call::Method;

const GET: Method = Method { path: "/google.iam.v1.IAMPolicy/GetIamPolicy", field: "resource" };
const SET: Method = Method { path: "/google.iam.v1.IAMPolicy/SetIamPolicy", field: "resource" };

/// The version of policies that have conditions. A client that reads less would delete them.
const POLICY_VERSION: i32 = 3;

/// A role of a member on a topic or a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IamBinding {
    /// The full name of the topic or the subscription.
    pub resource: String,
    /// The role, such as `roles/pubsub.publisher`.
    pub role: &'static str,
    /// The member, such as `serviceAccount:walrelay@p.iam.gserviceaccount.com`.
    pub member: String,
}

impl IamBinding {
    /// Grants the role. Returns false if the member has it already.
    ///
    /// # Errors
    ///
    /// The account lacks roles/pubsub.admin, or another client changed the policy at the same time.
    pub async fn grant(&self, endpoint: &Endpoint) -> Result<bool, PubsubError> {
        let authorised = AuthorisedChannel::open(endpoint)?;
        self.grant_on(&authorised).await.map_err(|status| PubsubError::Policy {
            resource: self.resource.clone(),
            code: call_code(status.code()),
            source: Box::new(Answer::of(&status)),
        })
    }

    async fn grant_on(&self, authorised: &AuthorisedChannel) -> Result<bool, Status> {
        let options = Some(GetPolicyOptions { requested_policy_version: POLICY_VERSION });
        let request = GetIamPolicyRequest { resource: self.resource.clone(), options };
        let mut policy: Policy = GET.call(authorised, &self.resource, request).await?;
        if !policy.add(self.role, &self.member) {
            return Ok(false);
        }
        let change = SetIamPolicyRequest { resource: self.resource.clone(), policy: Some(policy) };
        let _changed: Policy = SET.call(authorised, &self.resource, change).await?;
        Ok(true)
    }
}

/// `google.iam.v1.GetIamPolicyRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct GetIamPolicyRequest {
    #[prost(string, tag = "1")]
    resource: String,
    #[prost(message, optional, tag = "2")]
    options: Option<GetPolicyOptions>,
}

/// `google.iam.v1.GetPolicyOptions`.
#[derive(Clone, PartialEq, prost::Message)]
struct GetPolicyOptions {
    #[prost(int32, tag = "1")]
    requested_policy_version: i32,
}

/// `google.iam.v1.SetIamPolicyRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct SetIamPolicyRequest {
    #[prost(string, tag = "1")]
    resource: String,
    #[prost(message, optional, tag = "2")]
    policy: Option<Policy>,
}

/// `google.iam.v1.Policy`. The audit settings stay encoded.
#[derive(Clone, PartialEq, prost::Message)]
struct Policy {
    #[prost(int32, tag = "1")]
    version: i32,
    #[prost(bytes = "vec", tag = "3")]
    etag: Vec<u8>,
    #[prost(message, repeated, tag = "4")]
    bindings: Vec<Binding>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    audit_configs: Vec<Vec<u8>>,
}

/// `google.iam.v1.Binding`. The condition stays encoded.
#[derive(Clone, PartialEq, prost::Message)]
struct Binding {
    #[prost(string, tag = "1")]
    role: String,
    #[prost(string, repeated, tag = "2")]
    members: Vec<String>,
    #[prost(bytes = "vec", optional, tag = "3")]
    condition: Option<Vec<u8>>,
}

impl Policy {
    /// Adds a member without a condition. Returns false if the member has the role already.
    fn add(&mut self, role: &str, member: &str) -> bool {
        let plain = |binding: &&mut Binding| binding.role == role && binding.condition.is_none();
        let Some(binding) = self.bindings.iter_mut().find(plain) else {
            let members = vec![member.to_owned()];
            self.bindings.push(Binding { role: role.to_owned(), members, condition: None });
            return true;
        };
        if binding.members.iter().any(|known| known == member) {
            return false;
        }
        binding.members.push(member.to_owned());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_added_once_and_bindings_with_a_condition_stay_unchanged() {
        let conditional = Binding {
            role: "roles/pubsub.publisher".to_owned(),
            members: vec!["user:a".to_owned()],
            condition: Some(vec![1]),
        };
        let mut policy = Policy { bindings: vec![conditional.clone()], ..Policy::default() };
        assert!(policy.add("roles/pubsub.publisher", "user:a"));
        assert!(!policy.add("roles/pubsub.publisher", "user:a"));
        assert!(policy.add("roles/pubsub.publisher", "user:b"));
        assert!(policy.add("roles/pubsub.viewer", "user:b"));
        assert_eq!(policy.bindings[0], conditional);
        assert_eq!(policy.bindings[1].members, ["user:a", "user:b"]);
        assert_eq!(policy.bindings.len(), 3);
    }
}
