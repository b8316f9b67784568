//! Carries a Postgres transactional outbox into Google Cloud Pub/Sub, in order, losing nothing
