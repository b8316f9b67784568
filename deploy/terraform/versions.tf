# Checked with `terraform fmt` only: the Google provider could not be had, so nothing was validated, planned or applied.

terraform {
  required_version = ">= 1.5"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 6.0"
    }
  }
}
