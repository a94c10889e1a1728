{{- define "tuner.labels" -}}
app.kubernetes.io/name: tuner
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tuner.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "tuner.secret" -}}
{{ .Values.existingSecret | default .Release.Name }}
{{- end }}

{{/* Address of a database; the password is expanded by the kubelet, and stands in no manifest. */}}
{{- define "tuner.database" -}}
{{- if .root.Values.postgresql.enabled -}}
postgresql://tuner:$(POSTGRES_PASSWORD)@{{ .root.Release.Name }}-postgresql/{{ .name }}
{{- else -}}
{{ required "postgresql.url is required where postgresql.enabled is false" .root.Values.postgresql.url }}/{{ .name }}
{{- end -}}
{{- end }}

{{- define "tuner.passwordVariable" -}}
- name: POSTGRES_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "tuner.secret" . }}, key: postgresql-password, optional: {{ not .Values.postgresql.enabled }}}}
{{- end }}

{{/* Requests and limits alike: only then is what a pod was promised its own. */}}
{{- define "tuner.resources" -}}
requests: {{ toJson . }}
limits: {{ toJson . }}
{{- end }}

{{- define "tuner.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .root.Values.storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources: {requests: {storage: {{ .size }}}}
{{- end }}

{{/* A pod with no more rights than it needs, of a user's number. */}}
{{- define "tuner.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user }}
  runAsGroup: {{ .user }}
  fsGroup: {{ .user }}
  seccompProfile: {{ toJson (.seccomp | default (dict "type" "RuntimeDefault")) }}
{{- end }}

{{- define "tuner.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* A container below which workers train: each is confined by bwrap, which makes namespaces. */}}
{{- define "tuner.training" -}}
{{- if not (kindIs "bool" .Values.privileged) -}}
{{- fail "privileged is required: true, or false where the nodes let containers make user namespaces (docs/operations.md)" -}}
{{- end -}}
{{- if .Values.privileged -}}
privileged: true
readOnlyRootFilesystem: true
{{- else -}}
{{ include "tuner.confined" . }}
{{- end -}}
{{- end }}

{{/* Ray's nodes and driver know each other by a token. */}}
{{- define "tuner.rayToken" -}}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ include "tuner.secret" . }}, key: ray-token}}
{{- end }}
