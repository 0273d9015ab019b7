# The roles of meta servers and workers, of the API, and of pushers: the API takes the last for one tenant at a time
# (push.role_arn), with a session policy that leaves that tenant's folders of what is allowed here.
locals {
  # The chart's two service accounts -> the role that each takes.
  accounts = {
    service = var.service_account
    api     = "${var.service_account}-api"
  }
}

data "aws_iam_policy_document" "assume" {
  for_each = local.accounts
  statement {
    actions = ["sts:AssumeRoleWithWebIdentity"]
    principals {
      type        = "Federated"
      identifiers = [var.oidc_provider_arn]
    }
    condition {
      test     = "StringEquals"
      variable = "${var.oidc_provider}:sub"
      values   = ["system:serviceaccount:${var.namespace}:${each.value}"]
    }
    condition {
      test     = "StringEquals"
      variable = "${var.oidc_provider}:aud"
      values   = ["sts.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "bucket_access" {
  statement {
    sid       = "Objects"
    actions   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    resources = ["${aws_s3_bucket.tistream.arn}/*"]
  }
  statement {
    sid       = "List"
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.tistream.arn]
  }
  statement {
    sid       = "Key"
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [aws_kms_key.tistream.arn]
  }
}

data "aws_iam_policy_document" "issue" {
  statement {
    sid       = "Pushers"
    actions   = ["sts:AssumeRole"]
    resources = [aws_iam_role.pusher.arn]
  }
}

resource "aws_iam_role" "services" {
  for_each           = local.accounts
  name               = "${var.name}-${each.key}"
  assume_role_policy = data.aws_iam_policy_document.assume[each.key].json
  tags               = var.tags
}

resource "aws_iam_role_policy" "bucket" {
  for_each = local.accounts
  name     = "bucket"
  role     = aws_iam_role.services[each.key].id
  policy   = data.aws_iam_policy_document.bucket_access.json
}

resource "aws_iam_role_policy" "issue" {
  name   = "pushers"
  role   = aws_iam_role.services["api"].id
  policy = data.aws_iam_policy_document.issue.json
}

data "aws_iam_policy_document" "assume_pusher" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "AWS"
      identifiers = [aws_iam_role.services["api"].arn]
    }
  }
}

# Pushers put, and that is all: what they must know of the bucket they ask the services.
data "aws_iam_policy_document" "pusher" {
  statement {
    sid     = "Buffer"
    actions = ["s3:PutObject"]
    resources = [
      "${aws_s3_bucket.tistream.arn}/${var.prefix}/data_change_buffer/*",
      "${aws_s3_bucket.tistream.arn}/${var.prefix}/seeds/*",
    ]
  }
  statement {
    sid       = "Key"
    actions   = ["kms:GenerateDataKey"]
    resources = [aws_kms_key.tistream.arn]
  }
}

resource "aws_iam_role" "pusher" {
  name               = "${var.name}-pusher"
  assume_role_policy = data.aws_iam_policy_document.assume_pusher.json
  tags               = var.tags
}

resource "aws_iam_role_policy" "pusher" {
  name   = "buffer"
  role   = aws_iam_role.pusher.id
  policy = data.aws_iam_policy_document.pusher.json
}
