// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/foreign_keys.h"

namespace tessera::zoo {

namespace {

constexpr runtime::ForeignKey kForeignKeys[] = {
    {"adam_beta1", "optimizer.betas"},
    {"adam_beta2", "optimizer.betas"},
    {"adam_epsilon", "optimizer.eps"},
    {"amp", "precision.parameters"},
    {"beta1", "optimizer.betas"},
    {"beta2", "optimizer.betas"},
    {"beta3", "optimizer.betas"},
    {"bf16", "precision.parameters=bfloat16"},
    {"bfloat16", "precision.parameters=bfloat16"},
    {"dtype", "precision.parameters"},
    {"epsilon", "optimizer.eps"},
    {"fp16", "precision.parameters=float16"},
    {"grad_accum", "training.accumulate"},
    {"grad_accumulation_steps", "training.accumulate"},
    {"grad_clip", "training.clip_grad_norm"},
    {"gradient_accumulation_steps", "training.accumulate"},
    {"gradient_clipping", "training.clip_grad_norm"},
    {"half", "precision.parameters=float16"},
    {"image_mean", "data.pixels.mean"},
    {"image_std", "data.pixels.std"},
    {"init_lora_weights", "model.lora.init"},
    {"initial_scale_power", "loss_scale.initial"},
    {"learning_rate", "optimizer.lr"},
    {"loss_scale_window", "loss_scale.growth_interval"},
    {"lora_alpha", "model.lora.alpha"},
    {"lora_dropout", "model.lora.dropout"},
    {"lora_r", "model.lora.r"},
    {"lora_rank", "model.lora.r"},
    {"lora_target_modules", "model.lora.target_modules"},
    {"lr_scheduler", "schedule.decay"},
    {"lr_scheduler_type", "schedule.decay"},
    {"max_grad_norm", "training.clip_grad_norm"},
    {"max_length", "model.max_length"},
    {"max_seq_len", "model.max_length"},
    {"max_seq_length", "model.max_length"},
    {"micro_batch_size", "training.batch_size"},
    {"min_loss_scale", "loss_scale.minimum"},
    {"mixed_precision", "precision.parameters"},
    {"mlm_probability", "data.mask.probability"},
    {"model_name_or_path", "model.folder"},
    {"num_epochs", "training.epochs"},
    {"num_labels", "model.classes, their names, or model.problem_type"},
    {"num_train_epochs", "training.epochs"},
    {"num_warmup_steps", "schedule.warmup_steps"},
    {"output_dir", "output.folder"},
    {"peft", "model.lora"},
    {"peft_config", "model.lora"},
    {"per_device_train_batch_size", "training.batch_size"},
    {"rank", "model.lora.r"},
    {"resume_from_checkpoint", "training.resume"},
    {"save_steps", "training.save_every"},
    {"save_total_limit", "training.keep_last"},
    {"scheduler", "schedule.decay"},
    {"stage", "sharding.zero_stage"},
    {"torch_dtype", "precision.parameters"},
    {"train_batch_size", "training.batch_size, per rank and micro-batch"},
    {"train_micro_batch_size_per_gpu", "training.batch_size"},
    {"warmup_num_steps", "schedule.warmup_steps"},
    {"wd", "optimizer.weight_decay"},
    {"zero_optimization", "sharding.zero_stage"},
    {"zero_stage", "sharding.zero_stage"},
};

} // namespace

std::span<const runtime::ForeignKey> foreign_keys() {
  return kForeignKeys;
}

} // namespace tessera::zoo
