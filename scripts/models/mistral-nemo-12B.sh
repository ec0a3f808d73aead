# mistral-nemo-12B, MistralForCausalLM: written by scripts/model_args.py
MODEL_ARGS=(
   --swiglu
   --disable-bias-linear
   --normalization RMSNorm
   --position-embedding-type rope
   --use-rotary-position-embeddings
   --num-layers 40
   --hidden-size 5120
   --ffn-hidden-size 14336
   --num-attention-heads 32
   --kv-channels 128
   --vocab-size 131072
   --max-position-embeddings 128000
   --norm-epsilon 1e-05
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
   --untie-embeddings-and-output-weights
   --group-query-attention
   --num-query-groups 8
)
