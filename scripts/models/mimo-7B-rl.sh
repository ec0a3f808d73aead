# mimo-7B-rl, MiMoForCausalLM: written by scripts/model_args.py
MODEL_ARGS=(
   --swiglu
   --disable-bias-linear
   --normalization RMSNorm
   --position-embedding-type rope
   --use-rotary-position-embeddings
   --num-layers 36
   --hidden-size 4096
   --ffn-hidden-size 11008
   --num-attention-heads 32
   --vocab-size 151680
   --max-position-embeddings 32768
   --norm-epsilon 1e-05
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-640000}"
   --mtp-num-layers 1
   --untie-embeddings-and-output-weights
   --group-query-attention
   --num-query-groups 8
   --add-qkv-bias
)
