# Checked with `terraform fmt` only. See versions.tf.
#
# Alerts from log messages and from the number of instances, so they work without a scrape of /metrics. Those on the
# metrics of Pub/Sub and of walrelay are in monitoring.tf.

resource "google_logging_metric" "errors" {
  project     = var.project
  name        = "${var.name}-errors"
  description = "Log messages of walrelay that ask a person to act, by error code."
  filter      = "resource.type=\"cloud_run_revision\" AND resource.labels.service_name=~\"^${var.name}\" AND severity>=ERROR AND jsonPayload.error_code:*"

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "INT64"

    labels {
      key        = "error_code"
      value_type = "STRING"
    }
  }

  label_extractors = {
    error_code = "EXTRACT(jsonPayload.error_code)"
  }
}

resource "google_monitoring_alert_policy" "errors" {
  project               = var.project
  display_name          = "${var.name}: an error asks a person to act"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "log messages with an error code"

    condition_threshold {
      filter          = "resource.type=\"cloud_run_revision\" AND metric.type=\"logging.googleapis.com/user/${google_logging_metric.errors.name}\""
      comparison      = "COMPARISON_GT"
      threshold_value = 0
      duration        = "0s"

      aggregations {
        alignment_period     = "300s"
        per_series_aligner   = "ALIGN_SUM"
        cross_series_reducer = "REDUCE_SUM"
        group_by_fields      = ["metric.label.error_code"]
      }
    }
  }

  documentation {
    content   = "Run `walrelay explain CODE` with the error code, then `walrelay status`. ${var.runbook_base_url}"
    mime_type = "text/markdown"
  }
}

resource "google_monitoring_alert_policy" "relay_absent" {
  project               = var.project
  display_name          = "${var.name}: no relay runs"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "no instance for five minutes"

    condition_absent {
      filter   = "resource.type=\"cloud_run_revision\" AND resource.labels.service_name=\"${var.name}\" AND metric.type=\"run.googleapis.com/container/instance_count\""
      duration = "300s"

      aggregations {
        alignment_period     = "60s"
        per_series_aligner   = "ALIGN_MAX"
        cross_series_reducer = "REDUCE_SUM"
      }
    }
  }

  documentation {
    content   = "WAL accumulates while no relay runs. ${var.runbook_base_url}/walrelay-not-streaming.html"
    mime_type = "text/markdown"
  }
}
