// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/idle_keys.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/option_schema.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/tasks/image_folder_task.h"
#include "tessera/tasks/language_model_task.h"
#include "tessera/tasks/preference_task.h"
#include "tessera/tasks/question_answering_data.h"
#include "tessera/tasks/supervised_texts.h"
#include "tessera/tasks/task.h"
#include "tessera/tasks/text_classification_task.h"
#include "tessera/tasks/tokenized_data.h"
#include "tessera/tasks/training_config.h"
#include "tessera/text/rows/file_patterns.h"
#include "tessera/text/rows/text_rows.h"
#include "tessera/zoo/heads/patch_heads.h"
#include "tessera/zoo/models/registry.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace tessera::tasks {

namespace {

namespace fs = std::filesystem;

using zoo::ObjectiveKind;

/// A configuration, and what it takes files to know: asked for only where a key
/// that depends on it is given, and nothing where it cannot be told.
class Setting {
 public:
  explicit Setting(const TrainingConfig& config) : config_(config) {}

  const TrainingConfig& config() const {
    return config_;
  }

  /// Of the configured model; null: not known.
  const zoo::Head* head() {
    if (!model_) {
      model_ = described_model();
      head_ = *model_ == nullptr ? nullptr : (*model_)->head();
    }
    return head_.get();
  }

  /// Of language_model.
  std::optional<ObjectiveKind> objective() {
    const auto& given =
        config_.as<LanguageModelOptions>().tokens.objective.kind;
    if (given || head() == nullptr || head()->objectives().empty()) {
      return given;
    }
    return head()->objectives().front();
  }

  /// Whether all files are such; false also if they are not to be read.
  template <typename IsSuch>
  bool all_files(const IsSuch& is_such) {
    bool any = false;
    try {
      for (const auto& names : {config_.data.train, config_.data.heldout}) {
        for (const fs::path& file : text::matching_files(names)) {
          any = true;
          if (!fs::is_regular_file(file) || !is_such(file)) {
            return false;
          }
        }
      }
    } catch (const Error&) { // opening the data says what is wrong
      return false;
    }
    return any;
  }

 private:
  std::shared_ptr<zoo::Model> described_model() const {
    const fs::path file = config_.model_folder.empty()
                              ? config_.model_config
                              : config_.model_folder / "config.json";
    std::error_code code;
    if (file.empty() || !fs::is_regular_file(file, code)) {
      return nullptr;
    }
    try {
      const auto json =
          runtime::parse_json(runtime::read_text_file(file), file.string());
      return lazy(
          [&] {
            return zoo::from_config(
                json, {.architecture = config_.architecture}, file.string());
          },
          {.seed = 0}); // draws no random numbers
    } catch (const Error&) {
      return nullptr; // opening the model says what is wrong with it
    }
  }

  const TrainingConfig& config_;
  std::optional<std::shared_ptr<zoo::Model>> model_; ///< as asked for
  std::unique_ptr<zoo::Head> head_;
};

/// Why a key has no effect; "": it has one.
using Idle = std::string (*)(Setting& setting);

/// When a key, or all keys of an object, have an effect.
struct KeyRule {
  std::string_view key; ///< "data.mask"
  const TaskKind* task; ///< null: of each that has the key
  Idle idle; ///< null: always
};

std::string reason(bool is_idle, const char* text) {
  return is_idle ? text : "";
}

template <typename Options>
const Options& options_in(const Setting& setting) {
  return setting.config().as<Options>();
}

bool scales_loss(const Setting& setting) {
  const EngineOptions& engine = setting.config().engine;
  return engine.precision.parameters.value_or(at::kFloat) == at::kHalf;
}

std::string without_pipeline(Setting& setting) {
  return reason(
      setting.config().parallel.sizes.pipeline == 1, "parallel.pipeline is 1");
}

std::string without_scale(Setting& setting) {
  if (setting.config().engine.loss_scale.fixed) {
    return "loss_scale.fixed is the scale";
  }
  return reason(
      !scales_loss(setting),
      "only losses of float16 parameters are scaled (precision.parameters)");
}

std::string of_objectives(
    Setting& setting,
    std::initializer_list<ObjectiveKind> kinds) {
  const auto objective = setting.objective();
  if (!objective ||
      std::find(kinds.begin(), kinds.end(), *objective) != kinds.end()) {
    return "";
  }
  return formatted(
      "the objective is {} (data.objective, or what the model's head is for)",
      name_of(*objective));
}

std::string of_masks(Setting& setting) {
  return of_objectives(setting, {ObjectiveKind::kMasked});
}

std::string of_spans(Setting& setting) {
  return of_objectives(setting, {ObjectiveKind::kSpanCorruption});
}

std::string of_blanks(Setting& setting) {
  return of_objectives(setting, {ObjectiveKind::kBlankFilling});
}

std::string of_masks_and_blanks(Setting& setting) {
  return of_objectives(
      setting, {ObjectiveKind::kMasked, ObjectiveKind::kBlankFilling});
}

/// Of every objective but the next token and blanks.
std::string of_text_ends(Setting& setting) {
  return of_objectives(
      setting,
      {ObjectiveKind::kMasked,
       ObjectiveKind::kSpanCorruption,
       ObjectiveKind::kPrefix});
}

std::string of_pairs(Setting& setting) {
  const std::string other = of_masks(setting);
  return !other.empty() ? other
                        : reason(
                              setting.head() != nullptr &&
                                  !setting.head()->predicts_pairs(),
                              "the model takes no pairs of texts");
}

std::string of_text_files(Setting& setting) {
  const DataFiles& data = setting.config().data;
  return reason(
      !are_texts(data.train) && !are_texts(data.heldout) &&
          !(data.train.empty() && data.heldout.empty() &&
            options_in<LanguageModelOptions>(setting).tokens.blend.empty()),
      data.train.empty() ? "data.blend are files of tokens"
                         : "data.train is a file of tokens");
}

/// The formats that texts have; none: not known.
bool all_texts_are(Setting& setting, bool is_table_or_json) {
  const auto& text = options_in<LanguageModelOptions>(setting).tokens.text;
  if (text.format.format) {
    return (*text.format.format != zoo::TextFormat::kText) == is_table_or_json;
  }
  return setting.all_files([&](const fs::path& file) {
    const std::string suffix = file.extension().string();
    const bool has_rows = suffix == ".jsonl" || suffix == ".ndjson" ||
                          suffix == ".json" || suffix == ".csv" ||
                          suffix == ".tsv";
    return has_rows == is_table_or_json;
  });
}

std::string of_plain_texts(Setting& setting) {
  const std::string other = of_text_files(setting);
  return !other.empty()
             ? other
             : reason(
                   all_texts_are(setting, true),
                   "each row of JSON lines and tables is a document");
}

std::string of_text_rows(Setting& setting) {
  const std::string other = of_text_files(setting);
  return !other.empty() ? other
                        : reason(
                              all_texts_are(setting, false),
                              "the files are plain text, which has no keys");
}

std::string of_end_token(Setting& setting) {
  const std::string other = of_text_files(setting);
  return !other.empty() ? other
                        : reason(
                              options_in<LanguageModelOptions>(setting)
                                      .tokens.text.append_end == false,
                              "data.text.append_end is false");
}

bool is_json_lines(const fs::path& file) {
  return text::TextRows(file).columns().empty();
}

std::string of_tables(Setting& setting) {
  if (const auto* texts =
          setting.config().get_if<TextClassificationOptions>()) {
    if (texts->columns.preset != nullptr) {
      return "data.preset knows its tables";
    }
  }
  return reason(
      setting.all_files(is_json_lines),
      "no file is a table (CSV or TSV): they are JSON lines");
}

std::string of_question_tables(Setting& setting) {
  return reason(
      setting.all_files([](const fs::path& file) {
        return is_published_questions(file) || is_json_lines(file);
      }),
      "no file is a table (CSV or TSV)");
}

std::string of_question_rows(Setting& setting) {
  return reason(
      setting.all_files(is_published_questions),
      "the files are SQuAD's as published, whose keys are known");
}

std::string without_text_preset(Setting& setting) {
  return reason(
      options_in<TextClassificationOptions>(setting).columns.preset != nullptr,
      "data.preset has its own");
}

std::string of_text_keys(Setting& setting) {
  const std::string other = without_text_preset(setting);
  return !other.empty() ? other
                        : reason(
                              !options_in<TextClassificationOptions>(setting)
                                   .columns.prompt.empty(),
                              "data.template names the keys of texts");
}

std::string of_several_labels(Setting& setting) {
  return reason(
      setting.config().problem_type != "multi_label_classification",
      "a text has one label: set model.problem_type=multi_label_classification");
}

std::string without_supervised_preset(Setting& setting) {
  return reason(
      options_in<SupervisedOptions>(setting).preset.has_value(),
      "data.preset has its own");
}

std::string of_prompts(Setting& setting) {
  const std::string other = without_supervised_preset(setting);
  return !other.empty() ? other
                        : reason(
                              !options_in<SupervisedOptions>(setting)
                                   .prompt_template.empty(),
                              "data.template makes the prompts");
}

std::string of_generated_texts(Setting& setting) {
  return reason(
      options_in<SupervisedOptions>(setting).metrics.empty(),
      "nothing is generated: set data.metric");
}

std::string of_rouge(Setting& setting) {
  const auto& metrics = options_in<SupervisedOptions>(setting).metrics;
  const std::string other = of_generated_texts(setting);
  return !other.empty() ? other
                        : reason(
                              std::none_of(
                                  metrics.begin(),
                                  metrics.end(),
                                  [](const std::string& metric) {
                                    return metric.starts_with("rouge");
                                  }),
                              "data.metric has none of ROUGE's");
}

std::string of_judged_texts(Setting& setting) {
  return reason(
      options_in<PreferenceTaskOptions>(setting).has_pairs(),
      "it is for preference.loss=kto");
}

std::string of_unanswerable(Setting& setting) {
  return reason(
      !options_in<QuestionOptions>(setting).unanswerable,
      "each question has an answer: set data.unanswerable=true");
}

std::string of_center_crops(Setting& setting) {
  return reason(
      options_in<ImageTaskOptions>(setting).images.fit == ImageFit::kStretch,
      "data.fit=stretch takes whole images; stretch_crop cuts their middle");
}

std::string of_jitter(Setting& setting) {
  const ImageViewOptions& views =
      options_in<ImageTaskOptions>(setting).images.views;
  const bool may_have_colors =
      views.recipe
          ? *views.recipe == ViewRecipe::kMoco
          : setting.head() == nullptr || setting.head()->takes_two_views();
  return reason(
      views.jitter.empty() && !may_have_colors,
      "colors are not changed: set data.views.jitter");
}

std::string of_masked_patches(Setting& setting) {
  return reason(
      setting.head() != nullptr &&
          dynamic_cast<const zoo::MaskedPatchHead*>(setting.head()) == nullptr,
      "the model does not predict masked patches");
}

bool is_on_device(
    const std::optional<MemoryTier>& tier,
    const EngineOptions& engine) {
  return tier ? *tier == MemoryTier::kDevice
              : !engine.memory.device_bytes.has_value();
}

/// A key of an object has the rule of the object, unless it has its own; the
/// rule of a task goes before one of all.
const std::vector<KeyRule>& key_rules() {
  static const std::vector<KeyRule> rules{
      {"task", nullptr, nullptr},
      {"device", nullptr, nullptr},
      {"cpu_matmul", nullptr, nullptr},
      {"cuda_matmul", nullptr, nullptr},
      {"fused", nullptr, nullptr},
      {"timeout_s", nullptr, nullptr},
      {"keep_freed_memory", nullptr, nullptr},
      {"reuse_gradients", nullptr, nullptr},
      {"on_nonfinite", nullptr, nullptr},
      {"update_in_backward", nullptr, nullptr},
      {"recompute_operators", nullptr, nullptr},
      {"save_in_background", nullptr, nullptr},
      {"log_memory", nullptr, nullptr},

      {"model.folder", nullptr, nullptr},
      {"model.config", nullptr, nullptr},
      {"model.architecture", nullptr, nullptr},
      {"model.strict",
       nullptr,
       [](Setting& setting) {
         return reason(
             setting.config().model_folder.empty(),
             "model.config has no weights");
       }},
      {"model.start_from", nullptr, nullptr},
      {"model.lora", nullptr, nullptr},
      {"model.train", nullptr, nullptr},
      {"model.freeze", nullptr, nullptr},
      {"model.checkpoint_layers", nullptr, nullptr},
      {"model.checkpoint_attention", nullptr, nullptr},
      // Of recipes whose layout `tessera plan` chooses.
      {"model.divide_checkpoints", nullptr, nullptr},
      {"model.layer_drop", nullptr, nullptr},
      {"model.token_drop", nullptr, nullptr},
      {"model.classes", nullptr, nullptr},
      {"model.problem_type", nullptr, nullptr},
      {"model.problem_type", &kTextClassification, without_text_preset},
      {"model.max_length", nullptr, nullptr},
      {"distill", nullptr, nullptr}, // check() of them

      // Keys of other optimizers, decays and losses are errors.
      {"optimizer.type", nullptr, nullptr},
      {"optimizer.lr", nullptr, nullptr},
      {"optimizer.betas", nullptr, nullptr},
      {"optimizer.eps", nullptr, nullptr},
      {"optimizer.momentum", nullptr, nullptr},
      {"optimizer.dampening", nullptr, nullptr},
      {"optimizer.nesterov", nullptr, nullptr},
      {"optimizer.no_prox", nullptr, nullptr},
      {"optimizer.max_trust_ratio", nullptr, nullptr},
      {"optimizer.freeze_step", nullptr, nullptr},
      {"optimizer.var_freeze_step", nullptr, nullptr},
      {"optimizer.var_update_scaler", nullptr, nullptr},
      {"optimizer.ratio_beta", nullptr, nullptr},
      {"optimizer.min_factor", nullptr, nullptr},
      {"optimizer.max_factor", nullptr, nullptr},
      {"optimizer.factor_change", nullptr, nullptr},
      {"optimizer.clip_threshold", nullptr, nullptr},
      {"optimizer.scale_by_parameter", nullptr, nullptr},
      {"optimizer.min_scale", nullptr, nullptr},
      {"optimizer.decay_exponent", nullptr, nullptr},
      {"optimizer.adamw_name_patterns", nullptr, nullptr},
      {"optimizer.newton_schulz_steps", nullptr, nullptr},
      {"optimizer.match_adamw", nullptr, nullptr},
      {"optimizer.compute_dtype", nullptr, nullptr},
      {"optimizer.weight_decay", nullptr, nullptr},
      {"optimizer.frozen_steps", nullptr, nullptr},
      {"optimizer.moment_dtype", nullptr, nullptr},
      {"optimizer.stochastic_rounding", nullptr, nullptr},
      {"optimizer.ema_decay", nullptr, nullptr},
      {"optimizer.ema_warmup",
       nullptr,
       [](Setting& setting) {
         return reason(
             setting.config().engine.optimizer.ema_decay == 0,
             "there are no averages: set optimizer.ema_decay");
       }},
      {"optimizer.overlap", nullptr, nullptr},
      {"optimizer.parameters", nullptr, nullptr},

      {"schedule.decay", nullptr, nullptr},
      {"schedule.warmup_steps", nullptr, nullptr},
      {"schedule.warmup_fraction", nullptr, nullptr},
      {"schedule.final_factor", nullptr, nullptr},
      {"schedule.power", nullptr, nullptr},
      {"schedule.gamma", nullptr, nullptr},
      {"schedule.step_size", nullptr, nullptr},
      {"schedule.milestones", nullptr, nullptr},
      {"schedule.decay_steps", nullptr, nullptr},
      {"schedule.rise_fraction", nullptr, nullptr},
      {"schedule.start_div", nullptr, nullptr},
      {"schedule.final_div", nullptr, nullptr},

      {"sharding.zero_stage", nullptr, nullptr},
      {"sharding.shard_ranks", nullptr, nullptr},
      {"sharding.accumulation", nullptr, nullptr},
      {"sharding.prefetch_depth", nullptr, nullptr},
      {"sharding.broadcast_from_rank0", nullptr, nullptr},
      {"sharding.communication.gather", nullptr, nullptr},
      {"sharding.communication.reduce", nullptr, nullptr},
      {"sharding.communication.block_elements",
       nullptr,
       [](Setting& setting) {
         const auto& sent = setting.config().engine.sharding.communication;
         const CommunicationOptions usual;
         return reason(
             sent.gather == usual.gather && sent.reduce == usual.reduce,
             "shards and gradients are sent as they are: set "
             "sharding.communication.gather or .reduce");
       }},
      {"sharding.min_group_numel", nullptr, nullptr},
      {"sharding.max_group_numel", nullptr, nullptr},
      {"sharding.vocabulary_apart", nullptr, nullptr},
      {"sharding.modules", nullptr, nullptr},

      {"precision.parameters", nullptr, nullptr},
      {"precision.gradients", nullptr, nullptr},
      {"precision.accumulate", nullptr, nullptr},
      {"precision.buffers", nullptr, nullptr},
      {"precision.master_weights", nullptr, nullptr},
      {"precision.norms_in_float32", nullptr, nullptr},
      {"precision.frozen_weights",
       nullptr,
       [](Setting& setting) {
         const TrainingConfig& config = setting.config();
         return reason(
             !config.lora && config.trained.empty() && config.frozen.empty(),
             "all weights are trained: set model.lora");
       }},
      {"loss_scale.fixed", nullptr, nullptr},
      {"loss_scale.initial", nullptr, without_scale},
      {"loss_scale.growth_factor", nullptr, without_scale},
      {"loss_scale.backoff_factor", nullptr, without_scale},
      {"loss_scale.growth_interval", nullptr, without_scale},
      {"loss_scale.minimum", nullptr, without_scale},

      {"memory.device_bytes", nullptr, nullptr},
      {"memory.activation_bytes", nullptr, nullptr},
      {"memory.host_bytes", nullptr, nullptr},
      {"memory.nvme_path", nullptr, nullptr},
      {"memory.nvme_bytes",
       nullptr,
       [](Setting& setting) {
         return reason(
             setting.config().engine.memory.nvme_path.empty(),
             "nothing rests on a disk: set memory.nvme_path");
       }},
      {"placement.parameters", nullptr, nullptr},
      {"placement.gradients", nullptr, nullptr},
      {"placement.optimizer", nullptr, nullptr},
      {"placement.activations", nullptr, nullptr},
      {"offload.min_tensor_bytes", nullptr, nullptr},
      {"offload.prefetch_bytes", nullptr, nullptr},
      {"offload.activation_host_bytes", nullptr, nullptr},
      {"offload.ratio",
       nullptr,
       [](Setting& setting) {
         const EngineOptions& engine = setting.config().engine;
         return reason(
             is_on_device(engine.placement.optimizer, engine),
             "optimizer state rests on the device (placement.optimizer)");
       }},
      {"offload.stage_bytes",
       nullptr,
       [](Setting& setting) {
         const EngineOptions& engine = setting.config().engine;
         return reason(
             is_on_device(engine.placement.optimizer, engine),
             "optimizer state rests on the device (placement.optimizer)");
       }},

      // Of the first ones ParallelRun says it, which knows the sizes.
      {"parallel.sequence", nullptr, nullptr},
      {"parallel.overlap_pieces", nullptr, nullptr},
      {"parallel.context_attention", nullptr, nullptr},
      {"parallel.context_layout", nullptr, nullptr},
      {"parallel.schedule", nullptr, nullptr},
      {"parallel.cut", nullptr, nullptr},
      {"parallel.pipeline", nullptr, nullptr},
      {"parallel.data", nullptr, nullptr},
      {"parallel.shard", nullptr, nullptr},
      {"parallel.context", nullptr, nullptr},
      {"parallel.tensor", nullptr, nullptr},
      {"parallel.expert", nullptr, nullptr},
      {"parallel.chunks", nullptr, without_pipeline},
      {"parallel.piece_of_layer", nullptr, without_pipeline},

      {"training.epochs", nullptr, nullptr},
      {"training.max_steps", nullptr, nullptr},
      {"training.accumulate", nullptr, nullptr},
      {"training.log_every", nullptr, nullptr},
      {"training.step_timing", nullptr, nullptr},
      {"training.count_flops", nullptr, nullptr},
      {"training.profile_steps", nullptr, nullptr},
      {"training.profile_first",
       nullptr,
       [](Setting& setting) {
         return reason(
             setting.config().trainer.profile_steps == 0,
             "no step is profiled: set training.profile_steps");
       }},
      {"training.save_every", nullptr, nullptr},
      {"training.save_minutes", nullptr, nullptr},
      {"training.save_last", nullptr, nullptr},
      {"training.keep_last", nullptr, nullptr},
      // Without the one that they are for, the others are errors.
      {"training.evaluate_every", nullptr, nullptr},
      {"training.best_metric", nullptr, nullptr},
      {"training.keep_best", nullptr, nullptr},
      {"training.export_best", nullptr, nullptr},
      {"training.early_stop", nullptr, nullptr},
      {"training.ema_evaluate", nullptr, nullptr},
      {"training.resume_from", nullptr, nullptr},
      {"training.resume", nullptr, nullptr},
      {"training.on_bad_loss", nullptr, nullptr},
      {"training.loss_spike", nullptr, nullptr},
      {"training.clip_grad_norm", nullptr, nullptr},
      {"training.batch_size", nullptr, nullptr},
      {"training.loss_mean", nullptr, nullptr},
      {"training.new_data",
       nullptr,
       [](Setting& setting) {
         return reason(
             !setting.config().trainer.resume,
             "it is for a run that resumes (training.resume)");
       }},
      {"training.curriculum", nullptr, nullptr},
      {"training.curriculum.root_degree",
       nullptr,
       [](Setting& setting) {
         return reason(
             setting.config().curriculum &&
                 setting.config().curriculum->growth != CurriculumGrowth::kRoot,
             "training.curriculum.growth is linear");
       }},
      {"training.lr_range_test", nullptr, nullptr},
      {"training.seed", nullptr, nullptr},
      {"output.folder", nullptr, nullptr},
      {"output.overwrite", nullptr, nullptr},
      {"output.metrics", nullptr, nullptr},
      {"preference", nullptr, nullptr},
      {"reward", nullptr, nullptr},

      {"data.train", nullptr, nullptr},
      {"data.heldout", nullptr, nullptr},
      {"data.loader", nullptr, nullptr},
      {"data.skip_bad_rows", nullptr, nullptr},
      {"data.columns", nullptr, of_tables},
      {"data.quotes", nullptr, of_tables},
      {"data.columns", &kQuestionAnswering, of_question_tables},
      {"data.quotes", &kQuestionAnswering, of_question_tables},

      {"data.preset", nullptr, nullptr},
      {"data.text_key", nullptr, of_text_keys},
      {"data.label_key", &kTextClassification, without_text_preset},
      {"data.label_separator", nullptr, of_several_labels},
      {"data.template", nullptr, nullptr},
      {"data.verbalizers", nullptr, nullptr},
      {"data.metric", nullptr, nullptr},

      {"data.question_key", nullptr, of_question_rows},
      {"data.context_key", nullptr, of_question_rows},
      {"data.answer_key", nullptr, of_question_rows},
      {"data.answer_start_key", nullptr, of_question_rows},
      {"data.id_key", nullptr, of_question_rows},
      {"data.unanswerable", nullptr, nullptr},
      {"data.no_answer_threshold", nullptr, of_unanswerable},
      {"data.window_overlap", nullptr, nullptr},
      {"data.max_answer_length", nullptr, nullptr},
      {"data.n_best", nullptr, nullptr},

      {"data.token_type",
       nullptr,
       [](Setting& setting) {
         return reason(
             are_texts(setting.config().data.train),
             "the files of text become files with a header");
       }},
      {"data.blend", nullptr, nullptr},
      {"data.split", nullptr, nullptr},
      {"data.end_token", nullptr, nullptr},
      {"data.separate_documents", nullptr, nullptr},
      {"data.objective", nullptr, nullptr},
      {"data.tokenizer", nullptr, nullptr},
      {"data.special_tokens.start", nullptr, of_masks_and_blanks},
      {"data.special_tokens.end", nullptr, of_text_ends},
      {"data.special_tokens.document_end", nullptr, of_masks_and_blanks},
      {"data.special_tokens.mask", nullptr, of_masks_and_blanks},
      {"data.special_tokens.sentence_mask", nullptr, of_blanks},
      {"data.special_tokens.document_mask", nullptr, of_blanks},
      {"data.special_tokens.piece_start", nullptr, of_blanks},
      {"data.special_tokens.piece_end", nullptr, of_blanks},
      {"data.special_tokens.first_sentinel", nullptr, of_spans},
      {"data.mask.probability", &kLanguageModel, of_masks},
      {"data.mask.masked", &kLanguageModel, of_masks},
      {"data.mask.random", &kLanguageModel, of_masks},
      {"data.mask.whole_word", &kLanguageModel, of_masks},
      {"data.mask.words", &kLanguageModel, of_masks},
      {"data.mask.pairs", &kLanguageModel, of_pairs},
      {"data.mask", &kExamples, nullptr}, // an error for other models
      {"data.spans.density", nullptr, of_spans},
      {"data.spans.mean_length", nullptr, of_spans},
      {"data.blanks.short", nullptr, of_blanks},
      {"data.blanks.sentences", nullptr, of_blanks},
      {"data.blanks.document", nullptr, of_blanks},
      {"data.blanks.ratio", nullptr, of_blanks},
      {"data.blanks.mean_length", nullptr, of_blanks},
      {"data.blanks.least_document", nullptr, of_blanks},
      {"data.blanks.sentence_ends", nullptr, of_blanks},
      {"data.text.format", nullptr, of_text_files},
      {"data.text.document", nullptr, of_plain_texts},
      {"data.text.key", nullptr, of_text_rows},
      {"data.text.begin_token", nullptr, of_text_files},
      {"data.text.end_token", nullptr, of_end_token},
      {"data.text.append_end", nullptr, of_text_files},
      {"data.text.parse_special_tokens", nullptr, of_text_files},
      {"data.text.skip_bad_rows", nullptr, of_text_files},
      {"data.text.folder", nullptr, of_text_files},

      {"data.messages_key", nullptr, without_supervised_preset},
      {"data.prompt_key", nullptr, nullptr},
      {"data.prompt_key", &kSupervised, of_prompts},
      {"data.completion_key", &kSupervised, without_supervised_preset},
      {"data.completion_key", &kPreference, of_judged_texts},
      {"data.completion_key", &kReward, nullptr}, // of rows that get a reward
      {"data.label_key", &kPreference, of_judged_texts},
      {"data.packed", nullptr, nullptr},
      {"data.generate_heldout", nullptr, of_generated_texts},
      {"data.max_new_tokens", nullptr, of_generated_texts},
      {"data.rouge_stemmer", nullptr, of_rouge},
      {"data.chosen_key", nullptr, nullptr},
      {"data.rejected_key", nullptr, nullptr},
      {"data.margin_key", nullptr, nullptr},

      {"data.heldout_share", nullptr, nullptr},
      {"data.check", nullptr, nullptr},
      {"data.skip_bad_images", nullptr, nullptr},
      {"data.mixup", nullptr, nullptr},
      {"data.fit", nullptr, nullptr},
      {"data.center_crop", nullptr, of_center_crops},
      {"data.interpolation", nullptr, nullptr},
      {"data.views.recipe", nullptr, nullptr}, // with none, others are errors
      {"data.views.area", nullptr, nullptr},
      {"data.views.ratio", nullptr, nullptr},
      {"data.views.flip", nullptr, nullptr},
      {"data.views.jitter", nullptr, nullptr},
      {"data.views.jitter_probability", nullptr, of_jitter},
      {"data.views.gray", nullptr, nullptr},
      {"data.views.blur", nullptr, nullptr},
      {"data.views.solarize", nullptr, nullptr},
      {"data.pixels.scale", nullptr, nullptr},
      {"data.pixels.mean", nullptr, nullptr},
      {"data.pixels.std", nullptr, nullptr},
      {"data.patch_mask", nullptr, of_masked_patches},
      {"data.trim_padding", nullptr, nullptr},
      {"data.accuracy", nullptr, nullptr},
  };
  return rules;
}

/// Whether `key` is `object`, or in it.
bool is_in(std::string_view key, std::string_view object) {
  return key.starts_with(object) &&
         (key.size() == object.size() || key[object.size()] == '.' ||
          key[object.size()] == '[');
}

/// Null: there is none.
const KeyRule* rule_of_key(const TaskKind& task, std::string_view key) {
  const KeyRule* found = nullptr;
  for (const KeyRule& rule : key_rules()) {
    if (!is_in(key, rule.key) || (rule.task != nullptr && rule.task != &task)) {
      continue;
    }
    const bool is_nearer =
        found == nullptr || rule.key.size() > found->key.size() ||
        (rule.key.size() == found->key.size() && rule.task != nullptr);
    found = is_nearer ? &rule : found;
  }
  return found;
}

/// The keys that a task may have: not objects, and not what is in arrays.
std::vector<std::string> keys_of(const TaskKind& task) {
  TrainingConfig defaults(task);
  std::vector<std::string> keys;
  for (const auto& row :
       runtime::describe_list(runtime::list_of(defaults)).rows) {
    if (!keys.empty() && is_in(row.path, keys.back())) {
      if (row.path.find('[') == row.path.npos && row.path != keys.back()) {
        keys.back() = row.path; // in the object before it
      }
      continue;
    }
    keys.push_back(row.path);
  }
  std::set<std::string> seen; // choices have keys of the same name
  std::erase_if(
      keys, [&](const std::string& key) { return !seen.insert(key).second; });
  return keys;
}

bool is_given(const runtime::ConfigReader& reader, const std::string& key) {
  const size_t dot = key.find('.');
  return dot == key.npos ? reader.contains(key)
                         : reader.contains(key.substr(0, dot)) &&
                               is_given(
                                   reader.get_object(key.substr(0, dot)),
                                   key.substr(dot + 1));
}

/// The paths of what `before` has and `after` has not.
void add_dropped(
    const nlohmann::json& before,
    const nlohmann::json& after,
    const std::string& path,
    std::vector<std::string>& dropped) {
  for (const auto& [key, value] : before.items()) {
    const std::string inner = path + "." + key;
    const auto found = after.find(key);
    if (found == after.end()) {
      if (!value.is_null()) {
        dropped.push_back(inner);
      }
    } else if (value.is_object() && found->is_object()) {
      add_dropped(value, *found, inner, dropped);
    }
  }
}

nlohmann::json::json_pointer pointer_to(const std::string& path) {
  std::string pointer = "/" + path;
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return nlohmann::json::json_pointer(pointer);
}

} // namespace

std::vector<std::string> dropped_keys(
    nlohmann::json root,
    const std::vector<std::string>& overrides) {
  struct Dropped {
    std::string override_text;
    std::string path;
    std::vector<std::string> keys;
  };
  std::vector<Dropped> all;
  for (const std::string& text : overrides) {
    const nlohmann::json before = root;
    const std::string path = runtime::apply_override(root, text);
    const auto at = pointer_to(path);
    if (before.contains(at) && before.at(at).is_object() &&
        root.at(at).is_object()) {
      all.push_back({text, path, {}});
      add_dropped(before.at(at), root.at(at), path, all.back().keys);
    }
  }
  std::vector<std::string> lines;
  for (const Dropped& one : all) {
    std::string keys;
    for (const std::string& key : one.keys) {
      if (!root.contains(pointer_to(key))) { // no later override sets it
        keys += (keys.empty() ? "" : ", ") + key;
      }
    }
    if (!keys.empty()) {
      lines.push_back(formatted(
          "override '{}' replaces all that the file has of {}; back to the default: {}. To change single keys, write {}.KEY=VALUE",
          one.override_text,
          one.path,
          keys,
          one.path));
    }
  }
  return lines;
}

std::vector<std::string> idle_keys(
    const runtime::ConfigReader& reader,
    const TrainingConfig& config) {
  Setting setting(config);
  std::vector<std::string> lines;
  for (const std::string& key : keys_of(*config.task)) {
    const KeyRule* rule = rule_of_key(*config.task, key);
    if (rule == nullptr || rule->idle == nullptr || !is_given(reader, key)) {
      continue;
    }
    const std::string why = rule->idle(setting);
    if (!why.empty()) {
      lines.push_back(formatted("{} has no effect, because {}", key, why));
    }
  }
  return lines;
}

std::vector<std::string> keys_without_rule(const TaskKind& task) {
  std::vector<std::string> keys;
  for (const std::string& key : keys_of(task)) {
    if (rule_of_key(task, key) == nullptr) {
      keys.push_back(key);
    }
  }
  return keys;
}

} // namespace tessera::tasks
