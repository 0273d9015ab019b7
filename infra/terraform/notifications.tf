# The bucket tells a queue of new files of pushers, and meta servers read it. A message that is older than some minutes
# says nothing new: by then the services have found the file by looking.
resource "aws_sqs_queue" "notifications" {
  name                       = "${var.name}-notifications"
  message_retention_seconds  = 300
  visibility_timeout_seconds = 30
  sqs_managed_sse_enabled    = true
  tags                       = var.tags
}

data "aws_iam_policy_document" "notifications" {
  statement {
    sid       = "Bucket"
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.notifications.arn]
    principals {
      type        = "Service"
      identifiers = ["s3.amazonaws.com"]
    }
    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = [aws_s3_bucket.tistream.arn]
    }
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }
}

resource "aws_sqs_queue_policy" "notifications" {
  queue_url = aws_sqs_queue.notifications.id
  policy    = data.aws_iam_policy_document.notifications.json
}

resource "aws_s3_bucket_notification" "notifications" {
  bucket = aws_s3_bucket.tistream.id
  queue {
    queue_arn     = aws_sqs_queue.notifications.arn
    events        = ["s3:ObjectCreated:*"]
    filter_prefix = "${var.prefix}/data_change_buffer/"
  }
  depends_on = [aws_sqs_queue_policy.notifications]
}

data "aws_iam_policy_document" "read_notifications" {
  statement {
    sid       = "Notifications"
    actions   = ["sqs:ReceiveMessage", "sqs:DeleteMessage"]
    resources = [aws_sqs_queue.notifications.arn]
  }
}

resource "aws_iam_role_policy" "read_notifications" {
  name   = "notifications"
  role   = aws_iam_role.services["service"].id
  policy = data.aws_iam_policy_document.read_notifications.json
}
