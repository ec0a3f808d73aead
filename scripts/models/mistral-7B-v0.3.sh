# mistral-7B-v0.3, MistralForCausalLM: written by scripts/model_args.py
MODEL_ARGS=(
   --swiglu
   --disable-bias-linear
   --normalization RMSNorm
   --position-embedding-type rope
   --use-rotary-position-embeddings
   --num-layers 32
   --hidden-size 4096
   --ffn-hidden-size 14336
   --num-attention-heads 32
   --vocab-size 32768
   --max-position-embeddings 32768
   --norm-epsilon 1e-05
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
   --untie-embeddings-and-output-weights
   --group-query-attention
   --num-query-groups 8
)
