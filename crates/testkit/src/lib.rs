//! What the tests share: servers, faults, checker
