# Checked with `terraform fmt` only. See versions.tf.
#
# A relay and consumers as Cloud Run services with one instance each, which always have CPU. Scaling has no use: the
# slot is the lease of the relay, and a second relay is only a standby. `walrelay init` and `walrelay consumer init` run
# before, from a machine that reaches the database.
#
#   module "walrelay" {
#     source  = "./deploy/terraform"
#     project = "my-project"
#     region  = "europe-west1"
#     image   = "europe-west1-docker.pkg.dev/my-project/images/walrelay:0.1.0"
#     network = { network = "default", subnetwork = "default" }
#     topics  = ["order.events"]
#     consumers = {
#       billing = { handler = "billing.apply", topic = "order.events", database_url_secret = "billing-database-url" }
#     }
#   }

locals {
  endpoint = "https://${var.region}-pubsub.googleapis.com"

  relay_environment = merge(
    { for name, value in var.relay_options : "WALRELAY_${upper(replace(name, "-", "_"))}" => value },
    {
      WALRELAY_PROJECT    = var.project
      WALRELAY_ENDPOINT   = local.endpoint
      WALRELAY_LOG_FORMAT = "json"
    },
  )

  relay_secrets = merge(
    { WALRELAY_DATABASE_URL = var.database_url_secret },
    var.sslrootcert_secret == null ? {} : { WALRELAY_SSLROOTCERT_PEM = var.sslrootcert_secret },
  )
}

resource "google_service_account" "relay" {
  project      = var.project
  account_id   = var.name
  display_name = "walrelay relay"
}

resource "google_pubsub_topic" "topic" {
  for_each = var.topics

  project                    = var.project
  name                       = each.value
  message_retention_duration = "604800s"

  # Order within a key holds within one region.
  message_storage_policy {
    allowed_persistence_regions = [var.region]
  }
}

resource "google_pubsub_topic_iam_member" "relay" {
  for_each = google_pubsub_topic.topic

  project = var.project
  topic   = each.value.name
  role    = "roles/pubsub.publisher"
  member  = google_service_account.relay.member
}

resource "google_secret_manager_secret_iam_member" "relay" {
  for_each = local.relay_secrets

  project   = var.project
  secret_id = each.value
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.relay.member
}

resource "google_cloud_run_v2_service" "relay" {
  project  = var.project
  location = var.region
  name     = var.name

  # The HTTP port has no authentication of its own.
  ingress = "INGRESS_TRAFFIC_INTERNAL_ONLY"

  template {
    service_account = google_service_account.relay.email

    scaling {
      min_instance_count = 1
      max_instance_count = 1
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
      args  = ["run"]

      ports {
        container_port = 8080
      }

      resources {
        # Without this the relay has CPU only while a request is served.
        cpu_idle = false
        limits   = { cpu = "1", memory = "512Mi" }
      }

      dynamic "env" {
        for_each = local.relay_environment
        content {
          name  = env.key
          value = env.value
        }
      }

      dynamic "env" {
        for_each = local.relay_secrets
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

      # Live, not ready: a new revision stands by until the old one lets go of the slot.
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

  depends_on = [google_secret_manager_secret_iam_member.relay]
}
