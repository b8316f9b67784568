# Checked with `terraform fmt` only. See versions.tf.
#
# Alert policies and the dashboard of deploy/google-cloud. Policies on the metrics of walrelay need Managed Prometheus,
# which scrapes /metrics. Without it, only the policies on the metrics of Pub/Sub are created.

locals {
  google_cloud = "${path.module}/../google-cloud"

  policies = {
    for file in fileset(local.google_cloud, "alert-policies/*.json") :
    trimsuffix(basename(file), ".json") => jsondecode(file("${local.google_cloud}/${file}"))
  }

  threshold_policies  = { for name, policy in local.policies : name => policy if can(policy.conditions[0].conditionThreshold) }
  prometheus_policies = { for name, policy in local.policies : name => policy if can(policy.conditions[0].conditionPrometheusQueryLanguage) }
}

resource "google_monitoring_alert_policy" "pubsub" {
  for_each = local.threshold_policies

  project               = var.project
  display_name          = "${var.name}: ${each.value.displayName}"
  combiner              = each.value.combiner
  severity              = each.value.severity
  user_labels           = each.value.userLabels
  notification_channels = var.notification_channels

  conditions {
    display_name = each.value.conditions[0].displayName

    condition_threshold {
      filter          = each.value.conditions[0].conditionThreshold.filter
      comparison      = each.value.conditions[0].conditionThreshold.comparison
      threshold_value = each.value.conditions[0].conditionThreshold.thresholdValue
      duration        = each.value.conditions[0].conditionThreshold.duration

      aggregations {
        alignment_period   = each.value.conditions[0].conditionThreshold.aggregations[0].alignmentPeriod
        per_series_aligner = each.value.conditions[0].conditionThreshold.aggregations[0].perSeriesAligner
      }
    }
  }

  documentation {
    content   = each.value.documentation.content
    mime_type = each.value.documentation.mimeType
  }
}

resource "google_monitoring_alert_policy" "prometheus" {
  for_each = var.managed_prometheus ? local.prometheus_policies : {}

  project               = var.project
  display_name          = "${var.name}: ${each.value.displayName}"
  combiner              = each.value.combiner
  severity              = each.value.severity
  user_labels           = each.value.userLabels
  notification_channels = var.notification_channels

  conditions {
    display_name = each.value.conditions[0].displayName

    condition_prometheus_query_language {
      query               = each.value.conditions[0].conditionPrometheusQueryLanguage.query
      duration            = each.value.conditions[0].conditionPrometheusQueryLanguage.duration
      evaluation_interval = each.value.conditions[0].conditionPrometheusQueryLanguage.evaluationInterval
      alert_rule          = each.value.conditions[0].conditionPrometheusQueryLanguage.alertRule
    }
  }

  documentation {
    content   = each.value.documentation.content
    mime_type = each.value.documentation.mimeType
  }
}

resource "google_monitoring_dashboard" "walrelay" {
  project        = var.project
  dashboard_json = file("${local.google_cloud}/dashboard.json")
}
