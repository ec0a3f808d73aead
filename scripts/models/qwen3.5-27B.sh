# qwen3.5-27B, Qwen3_5ForConditionalGeneration: written by scripts/model_args.py
MODEL_ARGS=(
   --swiglu
   --disable-bias-linear
   --normalization RMSNorm
   --position-embedding-type rope
   --use-rotary-position-embeddings
   --num-layers 64
   --hidden-size 5120
   --ffn-hidden-size 17408
   --num-attention-heads 24
   --kv-channels 256
   --vocab-size 248320
   --norm-epsilon 1e-06
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-10000000}"
   --rotary-percent 0.25
   --untie-embeddings-and-output-weights
   --group-query-attention
   --num-query-groups 4
   --qk-layernorm
   --use-gated-attention
   --attention-output-gate
   --apply-layernorm-1p
)
