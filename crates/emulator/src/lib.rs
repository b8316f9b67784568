//! A small in-memory Pub/Sub that enforces production's limits and misbehaves on request
