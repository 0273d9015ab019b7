# The bucket. Objects are written once under keys of their own and deleted by the services, so versions are not needed
# for correctness; they are kept for some days against mistakes of people.
resource "aws_s3_bucket" "tistream" {
  bucket        = var.bucket
  force_destroy = false
  tags          = var.tags
}

resource "aws_s3_bucket_public_access_block" "tistream" {
  bucket                  = aws_s3_bucket.tistream.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "tistream" {
  bucket = aws_s3_bucket.tistream.id
  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_versioning" "tistream" {
  bucket = aws_s3_bucket.tistream.id
  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "tistream" {
  bucket = aws_s3_bucket.tistream.id
  rule {
    bucket_key_enabled = true # one KMS request for many objects
    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = aws_kms_key.tistream.arn
    }
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "tistream" {
  bucket = aws_s3_bucket.tistream.id

  # The log itself is never expired by the bucket: the catalog says what is still needed, and the services delete.
  rule {
    id     = "leftovers"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload {
      days_after_initiation = var.log_retention_days
    }
    noncurrent_version_expiration {
      noncurrent_days = var.log_retention_days
    }
    expiration {
      expired_object_delete_marker = true
    }
  }

  depends_on = [aws_s3_bucket_versioning.tistream]
}

data "aws_iam_policy_document" "bucket" {
  statement {
    sid     = "OnlyEncryptedConnections"
    effect  = "Deny"
    actions = ["s3:*"]
    resources = [
      aws_s3_bucket.tistream.arn,
      "${aws_s3_bucket.tistream.arn}/*",
    ]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_s3_bucket_policy" "tistream" {
  bucket     = aws_s3_bucket.tistream.id
  policy     = data.aws_iam_policy_document.bucket.json
  depends_on = [aws_s3_bucket_public_access_block.tistream]
}
