# The catalog: MariaDB in two zones.
resource "random_password" "catalog" {
  length  = 32
  special = false # it stands in an address
}

resource "aws_db_subnet_group" "catalog" {
  name       = "${var.name}-catalog"
  subnet_ids = var.subnet_ids
  tags       = var.tags
}

resource "aws_security_group" "catalog" {
  name        = "${var.name}-catalog"
  description = "The catalog's database: reached by TiStream's services only"
  vpc_id      = var.vpc_id
  tags        = var.tags
}

resource "aws_vpc_security_group_ingress_rule" "catalog" {
  for_each                     = toset(var.service_security_group_ids)
  security_group_id            = aws_security_group.catalog.id
  referenced_security_group_id = each.value
  description                  = "from TiStream's services"
  ip_protocol                  = "tcp"
  from_port                    = 3306
  to_port                      = 3306
}

resource "aws_db_parameter_group" "catalog" {
  name   = "${var.name}-catalog"
  family = "mariadb${var.db_engine_version}"
  tags   = var.tags

  # What was reported as committed survives a crash of the server.
  parameter {
    name  = "innodb_flush_log_at_trx_commit"
    value = "1"
  }
  parameter {
    name  = "sync_binlog"
    value = "1"
  }

  # No password and no row crosses the network in clear text.
  parameter {
    name  = "require_secure_transport"
    value = "1"
  }
}

resource "aws_db_instance" "catalog" {
  identifier                      = "${var.name}-catalog"
  engine                          = "mariadb"
  engine_version                  = var.db_engine_version
  instance_class                  = var.db_instance_class
  db_name                         = "tistream"
  username                        = "tistream"
  password                        = random_password.catalog.result
  allocated_storage               = 50
  max_allocated_storage           = 500
  storage_type                    = "gp3"
  storage_encrypted               = true
  kms_key_id                      = aws_kms_key.tistream.arn
  multi_az                        = true
  publicly_accessible             = false
  db_subnet_group_name            = aws_db_subnet_group.catalog.name
  vpc_security_group_ids          = [aws_security_group.catalog.id]
  parameter_group_name            = aws_db_parameter_group.catalog.name
  backup_retention_period         = 14
  copy_tags_to_snapshot           = true
  deletion_protection             = true
  auto_minor_version_upgrade      = true
  skip_final_snapshot             = false
  final_snapshot_identifier       = "${var.name}-catalog-final"
  performance_insights_enabled    = true
  performance_insights_kms_key_id = aws_kms_key.tistream.arn
  enabled_cloudwatch_logs_exports = ["error", "slowquery"]
  tags                            = var.tags
}

# What the chart's catalog.existingSecret is made from.
resource "aws_secretsmanager_secret" "catalog" {
  name       = "${var.name}/catalog-url"
  kms_key_id = aws_kms_key.tistream.arn
  tags       = var.tags
}

resource "aws_secretsmanager_secret_version" "catalog" {
  secret_id = aws_secretsmanager_secret.catalog.id
  secret_string = join("", [
    "mysql+pymysql://tistream:", random_password.catalog.result,
    "@", aws_db_instance.catalog.address, ":3306/tistream",
    var.catalog_ssl_ca == "" ? "" : "?ssl_ca=${var.catalog_ssl_ca}",
  ])
}
