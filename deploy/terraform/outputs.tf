# Checked with `terraform fmt` only. See versions.tf.

output "relay_service_account" {
  description = "Account that publishes."
  value       = google_service_account.relay.email
}

output "consumer_service_accounts" {
  description = "Accounts that read subscriptions, by consumer."
  value       = { for name, account in google_service_account.consumer : name => account.email }
}
