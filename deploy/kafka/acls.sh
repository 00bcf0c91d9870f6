#!/usr/bin/env bash
# Least rights on Kafka. Usage: deploy/kafka/acls.sh BOOTSTRAP ADMIN_CONFIG
# Principals: User:flightwatch-agent writes rows and blobs and reads commands; User:flightwatch-server reads rows,
# writes commands, findings and dead letters.
set -euo pipefail
bootstrap=${1:?bootstrap server}
admin=${2:?properties file of an administrator}
acl() { kafka-acls.sh --bootstrap-server "$bootstrap" --command-config "$admin" --add "$@"; }

for topic in flightwatch.rows. flightwatch.blobs; do
  acl --allow-principal User:flightwatch-agent --operation Write --operation Describe \
      --topic "$topic" --resource-pattern-type prefixed
done
acl --allow-principal User:flightwatch-agent --operation Read --operation Describe --topic flightwatch.commands
acl --allow-principal User:flightwatch-agent --operation IdempotentWrite --cluster

acl --allow-principal User:flightwatch-server --operation Read --operation Write --operation Describe \
    --operation Create --operation AlterConfigs --operation DescribeConfigs \
    --topic flightwatch. --resource-pattern-type prefixed
acl --allow-principal User:flightwatch-server --operation Read --operation Describe \
    --group flightwatch --resource-pattern-type prefixed
acl --allow-principal User:flightwatch-server --operation IdempotentWrite --cluster
