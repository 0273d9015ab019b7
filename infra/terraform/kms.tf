# One key for the bucket and the database. Tenants' own keys (CMEK) are theirs, and are made elsewhere.
data "aws_caller_identity" "current" {}

data "aws_iam_policy_document" "key" {
  statement {
    sid       = "AccountDecides"
    actions   = ["kms:*"]
    resources = ["*"]
    principals {
      type        = "AWS"
      identifiers = ["arn:aws:iam::${data.aws_caller_identity.current.account_id}:root"]
    }
  }
}

resource "aws_kms_key" "tistream" {
  description             = "${var.name}: bucket and database"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  policy                  = data.aws_iam_policy_document.key.json
  tags                    = var.tags
}

resource "aws_kms_alias" "tistream" {
  name          = "alias/${var.name}"
  target_key_id = aws_kms_key.tistream.key_id
}
