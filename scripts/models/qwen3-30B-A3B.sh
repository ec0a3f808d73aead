# qwen3-30B-A3B, Qwen3MoeForCausalLM: written by scripts/model_args.py
MODEL_ARGS=(
   --swiglu
   --disable-bias-linear
   --normalization RMSNorm
   --position-embedding-type rope
   --use-rotary-position-embeddings
   --num-layers 48
   --hidden-size 2048
   --ffn-hidden-size 6144
   --num-attention-heads 32
   --kv-channels 128
   --vocab-size 151936
   --norm-epsilon 1e-06
   --rotary-base "${MODEL_ARGS_ROTARY_BASE:-1000000}"
   --untie-embeddings-and-output-weights
   --group-query-attention
   --num-query-groups 4
   --qk-layernorm
   --num-experts 128
   --moe-layer-freq "[0]*0+[1]*48"
   --moe-ffn-hidden-size 768
   --moe-router-topk 8
   --moe-router-score-function softmax
   --moe-router-dtype fp32
   --moe-aux-loss-coeff 0
   --moe-token-dispatcher-type alltoall
   --moe-grouped-gemm
   --moe-permute-fusion
)
