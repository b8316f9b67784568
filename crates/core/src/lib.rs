//! Every decision of walrelay: routing, lanes, tracking, quarantine; no I/O and no clock
