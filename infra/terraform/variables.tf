variable "name" {
  description = "Prefix of everything that is made."
  type        = string
  default     = "tistream"
}

variable "bucket" {
  description = "Name of the bucket; unique in the world."
  type        = string
}

variable "prefix" {
  description = "Folder of the deployment in the bucket."
  type        = string
  default     = "production"
}

variable "vpc_id" {
  description = "The network that the services run in."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets of at least two zones, for the database."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) >= 2
    error_message = "A database in two zones needs subnets in two zones."
  }
}

variable "service_security_group_ids" {
  description = "Security groups of the services that may reach the database."
  type        = list(string)
}

variable "oidc_provider_arn" {
  description = "The Kubernetes cluster's OIDC provider; its service accounts take the services' roles."
  type        = string
}

variable "oidc_provider" {
  description = "The same provider's address without https://."
  type        = string
}

variable "namespace" {
  description = "The namespace that the chart is installed into."
  type        = string
  default     = "tistream"
}

variable "service_account" {
  description = "serviceAccount.name of the chart; the API's account is this name with -api."
  type        = string
  default     = "tistream"
}

variable "db_instance_class" {
  description = "Size of the database."
  type        = string
  default     = "db.m7g.large"
}

variable "db_engine_version" {
  description = "MariaDB."
  type        = string
  default     = "10.11"
}

variable "catalog_ssl_ca" {
  description = "Path, in the containers, of the authorities of RDS (its global bundle): /etc/tistream/catalog/ca.crt with catalog.caConfigMap of the chart. The services then check who the database is; without it the connection is encrypted only."
  type        = string
  default     = ""
}

variable "log_retention_days" {
  description = "Days after which an unfinished multipart upload or an old version of an object is removed."
  type        = number
  default     = 7
}

variable "tags" {
  description = "On everything."
  type        = map(string)
  default     = {}
}
