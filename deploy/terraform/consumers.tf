# Checked with `terraform fmt` only. See versions.tf.

locals {
  # One entry for each secret of each consumer.
  consumer_secrets = merge([
    for name, consumer in var.consumers : merge(
      { "${name}/WALRELAY_DATABASE_URL" = { consumer = name, secret = consumer.database_url_secret } },
      consumer.sslrootcert_secret == null ? {} : {
        "${name}/WALRELAY_SSLROOTCERT_PEM" = { consumer = name, secret = consumer.sslrootcert_secret }
      },
    )
  ]...)
}

resource "google_service_account" "consumer" {
  for_each = var.consumers

  project      = var.project
  account_id   = "${var.name}-${each.key}"
  display_name = "walrelay consumer ${each.key}"
}

resource "google_pubsub_subscription" "consumer" {
  for_each = var.consumers

  project = var.project
  name    = each.key
  topic   = each.value.topic

  # Cannot be changed later.
  enable_message_ordering    = true
  ack_deadline_seconds       = 60
  message_retention_duration = "604800s"
  retain_acked_messages      = true

  expiration_policy {
    ttl = ""
  }

  # No dead-letter policy: an outage of the database would send healthy messages there.
  depends_on = [google_pubsub_topic.topic]
}

resource "google_pubsub_subscription_iam_member" "consumer" {
  for_each = merge([
    for name in keys(var.consumers) : {
      for role in ["roles/pubsub.subscriber", "roles/pubsub.viewer"] : "${name}/${role}" => { consumer = name, role = role }
    }
  ]...)

  project      = var.project
  subscription = google_pubsub_subscription.consumer[each.value.consumer].name
  role         = each.value.role
  member       = google_service_account.consumer[each.value.consumer].member
}

resource "google_secret_manager_secret_iam_member" "consumer" {
  for_each = local.consumer_secrets

  project   = var.project
  secret_id = each.value.secret
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.consumer[each.value.consumer].member
}

resource "google_cloud_run_v2_service" "consumer" {
  for_each = var.consumers

  project  = var.project
  location = var.region
  name     = "${var.name}-${each.key}"
  ingress  = "INGRESS_TRAFFIC_INTERNAL_ONLY"

  template {
    service_account = google_service_account.consumer[each.key].email

    # Nothing scales a consumer by itself, because no request comes. Instances share the subscription.
    scaling {
      min_instance_count = each.value.instances
      max_instance_count = each.value.instances
    }

    vpc_access {
      egress = "ALL_TRAFFIC"
      network_interfaces {
        network    = var.network.network
        subnetwork = var.network.subnetwork
      }
    }

    containers {
      image = var.image
      args  = ["consumer", "run", each.key, "--handler", each.value.handler]

      ports {
        container_port = 8080
      }

      resources {
        cpu_idle = false
        limits   = { cpu = "1", memory = "512Mi" }
      }

      dynamic "env" {
        for_each = merge(
          { for name, value in each.value.options : "WALRELAY_${upper(replace(name, "-", "_"))}" => value },
          {
            WALRELAY_PROJECT    = var.project
            WALRELAY_ENDPOINT   = local.endpoint
            WALRELAY_LOG_FORMAT = "json"
          },
        )
        content {
          name  = env.key
          value = env.value
        }
      }

      dynamic "env" {
        for_each = { for key, entry in local.consumer_secrets : split("/", key)[1] => entry.secret if entry.consumer == each.key }
        content {
          name = env.key
          value_source {
            secret_key_ref {
              secret  = env.value
              version = "latest"
            }
          }
        }
      }

      # Never /readyz: a pause and an outage of the database are no reason for a restart.
      startup_probe {
        period_seconds    = 2
        failure_threshold = 30
        http_get {
          path = "/livez"
        }
      }

      liveness_probe {
        period_seconds    = 30
        failure_threshold = 3
        http_get {
          path = "/livez"
        }
      }
    }
  }

  depends_on = [google_secret_manager_secret_iam_member.consumer]
}
