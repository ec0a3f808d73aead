# llama3.2-3B-Instruct, LlamaForCausalLM: written by scripts/model_args.py
MODEL_ARGS=(
   --swiglu
   --disable-bias-linear
   --normalization RMSNorm
   --position-embedding-type rope
   --use-rotary-position-embeddings
   --num-layers 28
   --hidden-size 3072
   --ffn-hidden-size 8192
   --num-attention-heads 24
   --kv-channels 128
   --vocab-size 128256
   --max-position-embeddings 131072
   --norm-epsilon 1e-05
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-500000}"
   --group-query-attention
   --num-query-groups 8
   --use-rope-scaling
   --rotary-scaling-factor 32.0
)
