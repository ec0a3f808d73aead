"""What a run tells: metrics, their sinks, a summary, a progress line and logs.

metrics     every metric, declared once       sinks       metrics.jsonl and TensorBoard
event_file  TensorBoard's own files           summary     summary.json
trackers    services beside them
progress    the line a person watches         logging     process logs without secrets
recorder    the buffer's events -> all of these
"""
