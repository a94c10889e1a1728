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
{{- if .Values.postgresql.enabled }}
- name: POSTGRES_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ include "tuner.secret" . }}, key: postgresql-password}}
{{- end }}
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
