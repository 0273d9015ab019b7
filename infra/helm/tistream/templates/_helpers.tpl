{{- define "tistream.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "tistream.labels" -}}
app.kubernetes.io/name: tistream
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tistream.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "tistream.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "tistream.settings" -}}
- name: TISTREAM_CATALOG_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.catalog.existingSecret }}
      key: catalog-url
- name: TISTREAM_OBJECT_STORE_URL
  value: {{ required "objectStore.url says where the bucket is" .Values.objectStore.url | quote }}
- name: TISTREAM_LOG_LEVEL
  value: {{ .Values.log.level | quote }}
- name: TISTREAM_LOG_ACCESS
  value: {{ .Values.log.access | quote }}
{{- end }}

{{- define "tistream.envFrom" -}}
{{- with .Values.objectStore.existingSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end }}

{{- define "tistream.http.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: {{ . }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /livez, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}
