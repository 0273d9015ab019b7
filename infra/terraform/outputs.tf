output "object_store_url" {
  description = "objectStore.url of the chart."
  value       = "s3://${aws_s3_bucket.tistream.bucket}/${var.prefix}?region=${aws_s3_bucket.tistream.region}"
}

output "service_role_arn" {
  description = "serviceAccount.roleArn of the chart."
  value       = aws_iam_role.services["service"].arn
}

output "api_role_arn" {
  description = "serviceAccount.apiRoleArn of the chart."
  value       = aws_iam_role.services["api"].arn
}

output "pusher_role_arn" {
  description = "push.roleArn of the chart: of this role the API issues session credentials to pushers."
  value       = aws_iam_role.pusher.arn
}

output "kms_key_arn" {
  description = "push.kmsKeyArn of the chart: the bucket encrypts with this key, and pushers must name it."
  value       = aws_kms_key.tistream.arn
}

output "catalog_secret_arn" {
  description = "The secret that holds the catalog's address."
  value       = aws_secretsmanager_secret.catalog.arn
}

output "notifications_queue_url" {
  description = "notifications.sqsQueueUrl of the chart."
  value       = aws_sqs_queue.notifications.url
}
