# Checked with `terraform fmt` only. See versions.tf.

variable "project" {
  description = "Google Cloud project of the services, topics and secrets."
  type        = string
}

variable "region" {
  description = "Region of the services. Pub/Sub keeps the order of a key within one region only."
  type        = string
}

variable "image" {
  description = "Container image of walrelay, with a tag or a digest."
  type        = string
}

variable "network" {
  description = "VPC network and subnetwork that lead to the database."
  type        = object({ network = string, subnetwork = string })
}

variable "name" {
  description = "Name of the relay's service, and the first part of the other names."
  type        = string
  default     = "walrelay"
}

variable "topics" {
  description = "Topics that the relay publishes to. The module creates them."
  type        = set(string)
}

variable "database_url_secret" {
  description = "Secret Manager secret with the relay's connection string. The module does not read or write its value."
  type        = string
  default     = "walrelay-database-url"
}

variable "sslrootcert_secret" {
  description = "Secret with the certificate authority of the database, or null."
  type        = string
  default     = null
}

variable "relay_options" {
  description = "Options of `walrelay run` by their long names, for example { \"on-dead\" = \"hold\" }."
  type        = map(string)
  default     = {}
}

variable "consumers" {
  description = "Consumers by name. `walrelay consumer init` creates tables and subscription before."
  type = map(object({
    handler             = string
    topic               = string
    database_url_secret = string
    sslrootcert_secret  = optional(string)
    instances           = optional(number, 1)
    options             = optional(map(string), {})
  }))
  default = {}
}

variable "notification_channels" {
  description = "Notification channels of Cloud Monitoring for the alert policies."
  type        = list(string)
  default     = []
}

variable "runbook_base_url" {
  description = "Address of the folder with the runbooks, without a slash at the end."
  type        = string
  default     = ""
}

variable "managed_prometheus" {
  description = "Whether Managed Prometheus scrapes /metrics. The alert policies on the metrics of walrelay need it."
  type        = bool
  default     = false
}
