{{- define "tistream.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "tistream.labels" -}}
app.kubernetes.io/name: tistream
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* Chooses pods: root, component. A release's name alone says little: another chart in the namespace may have it too. */ -}}
{{- define "tistream.selector" -}}
app.kubernetes.io/name: tistream
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* A value as a word: helm reads numbers as floating point, and shows large ones with an exponent. */ -}}
{{- define "tistream.word" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

{{- /* What every pod has: root, of = the values of its kind, component. */ -}}
{{- define "tistream.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  {{- if .of.affinity }}
  {{- toYaml .of.affinity | nindent 2 }}
  {{- else }}
  podAntiAffinity: # one node, or one zone, holds no two of a kind where there is another
    preferredDuringSchedulingIgnoredDuringExecution:
      {{- range $weight, $key := dict "100" "kubernetes.io/hostname" "50" "topology.kubernetes.io/zone" }}
      - weight: {{ $weight }}
        podAffinityTerm:
          topologyKey: {{ $key }}
          labelSelector:
            matchLabels:
              {{- include "tistream.selector" $ | nindent 14 }}
      {{- end }}
  {{- end }}
{{- end }}

{{- define "tistream.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* The variables of every service: root, of = the values of its kind. */ -}}
{{- define "tistream.settings" -}}
- name: TISTREAM_CATALOG_URL
  valueFrom:
    secretKeyRef:
      name: {{ .root.Values.catalog.existingSecret }}
      key: catalog-url
- name: TISTREAM_OBJECT_STORE_URL
  value: {{ required "objectStore.url says where the bucket is" .root.Values.objectStore.url | quote }}
- name: TISTREAM_METRICS_HOST # /metrics of an HTTP port asks for a key
  value: "0.0.0.0"
- name: TISTREAM_METRICS_PORT
  value: "9464"
{{- include "tistream.portEnv" .root }}
{{- with .root.Values.notifications }}
{{- with .sqsQueueUrl }}
- name: TISTREAM_NOTIFICATIONS_SQS_QUEUE_URL
  value: {{ . | quote }}
{{- end }}
{{- with .webhookSecret }}
- name: TISTREAM_NOTIFICATIONS_WEBHOOK_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: webhook-token
{{- end }}
{{- end }}
{{- range $section, $settings := .root.Values.settings }}
{{- range $name, $value := $settings }}
- name: TISTREAM_{{ upper $section }}_{{ upper $name }}
  value: {{ include "tistream.word" $value | quote }}
{{- end }}
{{- end }}
{{- with concat .root.Values.extraEnv .of.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The Secret with the certificate of the HTTP ports. */ -}}
{{- define "tistream.tlsSecret" -}}
{{ .Values.tls.secret | default (printf "%s-tls" .Release.Name) }}
{{- end }}

{{- /* The variables of the HTTP ports of every process. */ -}}
{{- define "tistream.portEnv" -}}
{{- if .Values.tls.enabled }}
- name: TISTREAM_TLS_CERT
  value: /etc/tistream/tls/tls.crt
- name: TISTREAM_TLS_KEY
  value: /etc/tistream/tls/tls.key
{{- if .Values.tls.mutual }}
- name: TISTREAM_TLS_CLIENT_CA
  value: /etc/tistream/tls/ca.crt
{{- end }}
{{- else }}
- name: TISTREAM_INSECURE_LISTEN # plain text inside the pod network
  value: "true"
{{- end }}
{{- end }}

{{- define "tistream.tlsMount" -}}
{{- if .Values.tls.enabled }}
- name: tls
  mountPath: /etc/tistream/tls
  readOnly: true
{{- end }}
{{- end }}

{{- define "tistream.tlsVolume" -}}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "tistream.tlsSecret" . }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- /* The kinds of pods that pass notifications of the bucket on to dispatchers. */ -}}
{{- define "tistream.notifiers" -}}
{{- with .Values.notifications }}{{ if .sqsQueueUrl }}meta {{ end }}{{ if .webhookSecret }}api{{ end }}{{ end }}
{{- end }}

{{- /* TLS of callers of dispatchers that are no sorters: root, component. */ -}}
{{- define "tistream.calls" -}}
{{- if and .root.Values.feed.tls (has .component (include "tistream.notifiers" .root | splitList " ")) }}true{{ end }}
{{- end }}

{{- /* The variables of TLS between dispatchers and their callers: root, peer. */ -}}
{{- define "tistream.feedEnv" -}}
- name: TISTREAM_FEED_TLS_CERTIFICATE
  value: /etc/tistream/feed/tls.crt
- name: TISTREAM_FEED_TLS_KEY
  value: /etc/tistream/feed/tls.key
- name: TISTREAM_FEED_TLS_CA
  value: /etc/tistream/feed/ca.crt
- name: TISTREAM_FEED_TLS_PEER_NAME
  value: {{ .root.Release.Name }}-{{ .peer }}
{{- end }}

{{- define "tistream.feedMount" -}}
- name: feed
  mountPath: /etc/tistream/feed
  readOnly: true
{{- end }}

{{- /* root, role = of the certificate */ -}}
{{- define "tistream.feedVolume" -}}
- name: feed
  secret:
    secretName: {{ .root.Release.Name }}-{{ .role }}-feed
    defaultMode: 0440
{{- end }}

{{- define "tistream.envFrom" -}}
{{- with .Values.objectStore.existingSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end }}

{{- /* root, port. With mutual TLS these two paths alone answer who has no certificate. */ -}}
{{- define "tistream.probes" -}}
{{- $at := printf "port: %s" .port }}
{{- if .root.Values.tls.enabled }}{{ $at = printf "%s, scheme: HTTPS" $at }}{{ end -}}
startupProbe:
  httpGet: {path: /livez, {{ $at }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, {{ $at }}}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, {{ $at }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- /* The root is read-only: these are what a process may write to, and what it reads beside its image. */ -}}
{{- define "tistream.mounts" -}}
- name: home
  mountPath: /var/lib/tistream
- name: tmp
  mountPath: /tmp
{{- if .Values.catalog.caConfigMap }}
- name: catalog-ca
  mountPath: /etc/tistream/catalog
  readOnly: true
{{- end }}
{{- include "tistream.tlsMount" . }}
{{- end }}

{{- define "tistream.volumes" -}}
- name: tmp
  emptyDir: {}
{{- with .Values.catalog.caConfigMap }}
- name: catalog-ca
  configMap:
    name: {{ . }}
{{- end }}
{{- include "tistream.tlsVolume" . }}
{{- end }}

{{- /* root, component */ -}}
{{- define "tistream.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .root.Release.Name }}-{{ .component }}
  labels:
    {{- include "tistream.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "tistream.selector" . | nindent 6 }}
{{- end }}
