// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/generate.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/generation/beam_search.h"
#include "tessera/zoo/generation/single_search.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/layers/positions.h"
#include "tessera/zoo/models/pipeline_model.h"

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::zoo {

namespace {

/// Rows that are processed together; one group per micro-batch of a pipeline.
struct TextGroup {
  int64_t first;
  int64_t rows;
  KeyValueCache cache;
};

/// Repeats every row `copies` times in succession.
at::Tensor repeated(const at::Tensor& rows, int64_t copies) {
  return rows.defined() && copies > 1 ? rows.repeat_interleave(copies, 0)
                                      : rows;
}

/// An input per token of the prompts, up to `length` tokens.
at::Tensor continued_to(
    int64_t length,
    const at::Tensor& given,
    NewTokens new_tokens) {
  at::Tensor added = given.narrow(1, given.size(1) - 1, 1);
  if (new_tokens == NewTokens::kZero) {
    added = at::zeros_like(added);
  }
  return at::cat({given, added.expand({-1, length - given.size(1)})}, 1);
}

/// The number of rows per prompt.
int64_t copies_in(const GenerateOptions& options) {
  return std::max(options.num_beams, options.num_return_sequences);
}

/// The number of padding tokens before each prompt, on the CPU; undefined for
/// none.
at::Tensor padding_of(const Model& model, const ModelInput& prompt) {
  return model.first_token() || !prompt.attention_mask.defined()
             ? at::Tensor()
             : prompt.attention_mask.ne(0).to(at::kInt).argmax(1).to(at::kCPU);
}

/// The search, starting from the prompts or from the decoder's start token.
std::unique_ptr<TextSearch> make_search(
    const Model& model,
    const ModelInput& prompt,
    const GenerateOptions& options,
    const EndsSequence& ends) {
  const int64_t copies = copies_in(options);
  const at::Tensor begin =
      model.first_token()
          ? torch::full(
                {prompt.input_ids.size(0), 1},
                options.decoder_start_token_id.value_or(*model.first_token()),
                torch::kLong)
          : prompt.input_ids.to(at::kCPU, at::kLong);
  const at::Tensor padding = padding_of(model, prompt);
  const at::Tensor rows = repeated(begin, copies);
  if (options.num_beams > 1) {
    return std::make_unique<BeamSearch>(
        options, rows, repeated(padding, copies), ends);
  }
  return std::make_unique<SingleSearch>(
      options, rows, repeated(padding, copies), ends);
}

/// @param is_divided over ranks.
void check_prompt(Model& model, const ModelInput& prompt, bool is_divided) {
  const auto head = model.head();
  const HeadLabels labels =
      head == nullptr ? HeadLabels::kOther : head->labels();
  TESSERA_CHECK(
      labels != HeadLabels::kClass && labels != HeadLabels::kClasses &&
          labels != HeadLabels::kNumbers &&
          (head == nullptr || !head->finds_answers()),
      "generate: a {} does not write texts; apply a model that classifies or finds answers with `tessera predict`",
      model.architecture());
  TESSERA_CHECK(
      model.takes_cache(),
      "generate: a {} cannot continue sequences{}",
      model.architecture(),
      is_divided
          ? " in this layout of ranks; use a causal model, and do not divide sequences over ranks"
          : "; use a causal model or an encoder-decoder");
  TESSERA_CHECK(
      prompt.input_ids.defined() && prompt.input_ids.dim() == 2 &&
          prompt.input_ids.numel() > 0,
      "generate: input_ids are missing, empty or not [batch, sequence]");
  const bool blanks = model.fills_blanks();
  const auto continued = model.continued_inputs();
  std::string more = blanks ? ", position_ids, sep" : "";
  for (const auto& [name, new_tokens] : continued) {
    more += ", " + name;
  }
  for (const auto& [name, tensor] : prompt.named()) {
    if (blanks && (name == "position_ids" || name == "sep")) {
      continue; // checked below
    }
    TESSERA_CHECK(
        name == "input_ids" || name == "attention_mask" ||
            continued.contains(name),
        "generate: unexpected input '{}'; only input_ids, attention_mask{} are accepted",
        name,
        more);
    TESSERA_CHECK(
        tensor.sizes() == prompt.input_ids.sizes(),
        "generate: {} is {}, but input_ids are {}",
        name,
        tensor.sizes(),
        prompt.input_ids.sizes());
  }
  TESSERA_CHECK(
      !blanks ||
          (prompt.position_ids.defined() && prompt.others.count("sep") == 1 &&
           prompt.position_ids.dim() == 3 &&
           prompt.position_ids.size(2) == prompt.input_ids.size(1)),
      "generate: the model fills blanks; give it sep [batch] and position_ids [batch, 2, sequence], as blank_inputs() makes them");
  const at::Tensor& mask = prompt.attention_mask;
  TESSERA_CHECK(
      model.first_token() || !mask.defined() ||
          mask.select(1, -1).ne(0).all().item<bool>(),
      "generate: a sequence ends with padding; pad sequences on the left");
}

class Writer {
 public:
  /// @param options of options_after(), the same for all prompts.
  Writer(
      Model& model,
      const ModelInput& prompt,
      const GenerateOptions& options,
      ParallelRun* parallel,
      const EndsSequence& ends,
      PromptCache* kept)
      : model_(model),
        prompt_(prompt),
        copies_(copies_in(options)),
        executor_(parallel == nullptr ? nullptr : parallel->pipeline()),
        stages_(
            executor_ == nullptr
                ? nullptr
                : &parallel->groups()[ParallelGroup::kPipeline]),
        device_(prompt.input_ids.device()) {
    for (const auto& [name, tensor] : prompt.named()) {
      if (model.continued_inputs().contains(name)) {
        continued_.emplace(name, tensor);
      }
    }
    const bool is_plain = prompt.input_ids.size(0) == 1 && continued_.empty() &&
                          !prompt.attention_mask.defined();
    kept_ = is_plain && model.keeps_cache() ? kept : nullptr;
    check_positions(options.max_new_tokens);
    search_ = make_search(model, prompt, options, ends);
    given_ = search_->rows().size(1);
    make_groups(prompt.input_ids.size(0), given_ + options.max_new_tokens);
  }

  at::Tensor write() {
    const at::NoGradGuard no_grad;
    // Each prompt is processed once, before its rows are duplicated.
    at::Tensor logits = read(prompt_rows());
    prompt_.input_ids = repeated(prompt_.input_ids, copies_);
    prompt_.attention_mask = repeated(prompt_.attention_mask, copies_);
    prompt_.position_ids = repeated(prompt_.position_ids, copies_);
    for (auto& [name, tensor] : continued_) {
      tensor = repeated(tensor, copies_);
    }
    if (copies_ > 1) {
      keep();
    }
    repeat_groups();
    if (logits.defined()) {
      logits = repeated(logits, copies_);
    }
    while (true) {
      const at::Tensor followed = search_->advance(agreed(logits));
      if (search_->is_done()) {
        if (copies_ == 1) {
          keep();
        }
        return search_->result();
      }
      if (followed.defined()) {
        reorder(followed);
      }
      logits = read(search_->rows());
    }
  }

 private:
  /// Learned positions are limited: fail now rather than after most tokens are
  /// generated. The last token is never an input.
  void check_positions(int64_t max_new_tokens) const {
    const auto most = model_.position_limit();
    if (model_.fills_blanks()) {
      const at::Tensor blank = prompt_.position_ids.select(1, 1).select(1, -1);
      const int64_t last = blank.max().item<int64_t>() + max_new_tokens - 1;
      TESSERA_CHECK(
          !most || last < *most,
          "generate: max_new_tokens is {}; the model has {} positions for what it fills in: use {} or less",
          max_new_tokens,
          most.value_or(0),
          max_new_tokens - (last + 1 - most.value_or(0)));
      return;
    }
    const int64_t given = prompt_.input_ids.size(1);
    TESSERA_CHECK(
        !most || given + max_new_tokens - 1 <= *most,
        "generate: the longest sequence has {} tokens and max_new_tokens is {}; the model has {} positions: use max_new_tokens of {} or less, or shorter sequences",
        given,
        max_new_tokens,
        most.value_or(0),
        std::max<int64_t>(0, most.value_or(0) + 1 - given));
  }

  void make_groups(int64_t rows, int64_t capacity) {
    const int64_t count =
        stages_ == nullptr ? 1 : std::min<int64_t>(rows, stages_->size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = i * rows / count;
      groups_.push_back(
          {first,
           (i + 1) * rows / count - first,
           kept_ == nullptr ? KeyValueCache(capacity)
                            : kept_->take(tokens_of_first(), capacity)});
    }
  }

  /// The tokens of the first row.
  std::vector<int64_t> tokens_of_first() const {
    const at::Tensor row = search_->rows()[0].contiguous();
    const int64_t* begin = row.const_data_ptr<int64_t>();
    return {begin, begin + row.numel()};
  }

  /// Keeps what has been read of a single row; repeat_groups() copies it.
  void keep() {
    if (kept_ != nullptr) {
      kept_->put(groups_.front().cache, tokens_of_first());
    }
  }

  /// One row per prompt.
  at::Tensor prompt_rows() const {
    return search_->rows().view({-1, copies_, given_}).select(1, 0);
  }

  void repeat_groups() {
    if (copies_ == 1) {
      return;
    }
    for (TextGroup& group : groups_) {
      group.cache.reorder(repeated(torch::arange(group.rows), copies_));
      group.first *= copies_;
      group.rows *= copies_;
    }
  }

  /// @param followed the row that each row continues, of the same prompt.
  void reorder(const at::Tensor& followed) {
    for (TextGroup& group : groups_) {
      group.cache.reorder(
          followed.narrow(0, group.first, group.rows) - group.first);
    }
  }

  /// The next input: all tokens at first, later the last one.
  ModelInput input_of(TextGroup& group, const at::Tensor& rows) const {
    const auto of_rows = [&](const at::Tensor& all) {
      return all.narrow(0, group.first, group.rows).to(device_);
    };
    ModelInput input;
    input.cache = &group.cache;
    input.last_logits = true;
    const int64_t read = group.cache.length();
    const at::Tensor fresh = of_rows(rows.narrow(1, read, rows.size(1) - read));
    if (model_.first_token()) {
      input.input_ids = of_rows(prompt_.input_ids);
      input.decoder_input_ids = fresh;
      if (prompt_.attention_mask.defined()) {
        input.attention_mask = of_rows(prompt_.attention_mask);
      }
      return input;
    }
    input.input_ids = fresh;
    if (prompt_.attention_mask.defined()) {
      input.attention_mask = at::constant_pad_nd(
          of_rows(prompt_.attention_mask), {0, rows.size(1) - given_}, 1);
    }
    if (model_.fills_blanks()) {
      add_blanks(group, read, fresh.size(1), input);
    } else if (prompt_.attention_mask.defined()) {
      input.position_ids = positions_without_padding(input.attention_mask)
                               .narrow(1, read, fresh.size(1))
                               .clamp_min(0);
    }
    const auto continued = model_.continued_inputs();
    for (const auto& [name, given] : continued_) {
      const at::Tensor all =
          continued_to(rows.size(1), of_rows(given), continued.at(name));
      (name == "token_type_ids" ? input.token_type_ids : input.others[name]) =
          all.narrow(1, read, fresh.size(1));
    }
    return input;
  }

  /// Adds the positions of `count` tokens after the first `read` ones, and the
  /// length of the context with the first of them.
  void add_blanks(
      const TextGroup& group,
      int64_t read,
      int64_t count,
      ModelInput& input) const {
    const at::Tensor new_positions =
        prompt_.position_ids.narrow(0, group.first, group.rows).to(device_);
    if (read == 0) {
      input.position_ids = new_positions;
      input.others["sep"] = prompt_.others.at("sep")
                                .narrow(0, group.first, group.rows)
                                .to(device_);
      return;
    }
    const at::Tensor last = new_positions.narrow(2, given_ - 1, 1);
    const at::Tensor steps =
        torch::arange(read, read + count, last.options()) - (given_ - 1);
    input.position_ids = at::cat(
        {last.narrow(1, 0, 1).expand({-1, 1, count}),
         last.narrow(1, 1, 1) + steps},
        1);
  }

  /// @return logits of the next token [B, vocabulary] on the rank with the
  ///     model's last layer; elsewhere undefined.
  at::Tensor read(const at::Tensor& rows) {
    std::vector<ModelInput> inputs;
    for (TextGroup& group : groups_) {
      inputs.push_back(input_of(group, rows));
    }
    std::vector<at::Tensor> logits;
    if (executor_ == nullptr) {
      logits.push_back(model_.forward(inputs.front()).logits);
    } else {
      for (ModelOutput& output :
           evaluate_pipeline(*executor_, model_, inputs)) {
        logits.push_back(std::move(output.logits));
      }
    }
    for (TextGroup& group : groups_) {
      const int64_t fresh = rows.size(1) - group.cache.length();
      if (kept_ != nullptr) {
        kept_->add_read(fresh * group.rows);
      }
      group.cache.advance(fresh);
    }
    if (logits.empty()) {
      return {};
    }
    TESSERA_CHECK(
        logits.front().defined(),
        "generate: the model has no language modeling head");
    const at::Tensor next = at::cat(logits).select(1, -1);
    TESSERA_CHECK(
        !next.isnan().any().item<bool>(),
        "generate: the model's scores of the next token are NaN: its weights are not finite, or too large for its dtype; load others, or compute in float32 or bfloat16");
    return next;
  }

  /// The proposal made from logits, the same on all pipeline stages.
  TokenProposal agreed(const at::Tensor& logits) {
    TokenProposal proposal =
        logits.defined() ? search_->propose(logits) : search_->blank();
    if (stages_ != nullptr) {
      for (at::Tensor* tensor : {&proposal.tokens, &proposal.scores}) {
        if (tensor->defined()) {
          at::Tensor sent = tensor->contiguous().to(device_);
          stages_->broadcast(sent, stages_->size() - 1, "the next tokens")
              .wait();
          *tensor = sent.to(at::kCPU);
        }
      }
    }
    return proposal;
  }

  Model& model_;
  ModelInput prompt_;
  NamedTensors continued_; ///< of prompt_, see Model::continued_inputs()
  int64_t copies_; ///< rows per prompt, after it has been processed
  PipelineExecutor* executor_;
  Communicator* stages_; ///< null without a pipeline
  at::Device device_;
  PromptCache* kept_ = nullptr; ///< null: nothing is kept
  std::unique_ptr<TextSearch> search_;
  int64_t given_ = 0; ///< prompt length in tokens
  std::deque<TextGroup> groups_;
};

/// Prompts of a batch that can be continued together.
struct SimilarPrompts {
  GenerateOptions options; ///< of options_after()
  int64_t length; ///< of the longest
  std::vector<int64_t> prompt_indices; ///< of the prompts in the batch
};

/// By the numbers of new tokens, which lengths of the whole text and positions
/// of the model make different; and by length where the positions of a prompt
/// depend on it (dynamic NTK), which would otherwise be the longest one's.
std::vector<SimilarPrompts> similar_prompts(
    const Model& model,
    const ModelInput& prompt,
    const GenerateOptions& options) {
  const bool by_length =
      !model.first_token() && !model.fills_blanks() && !model.keeps_cache();
  const at::Tensor padding = padding_of(model, prompt);
  std::vector<SimilarPrompts> groups;
  for (int64_t i = 0; i < prompt.input_ids.size(0); ++i) {
    const int64_t length = prompt.input_ids.size(1) -
                           (padding.defined() ? padding[i].item<int64_t>() : 0);
    GenerateOptions row_options = options_after(model, options, length);
    const auto found =
        std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
          return group.options.max_new_tokens == row_options.max_new_tokens &&
                 group.options.min_new_tokens == row_options.min_new_tokens &&
                 (!by_length || group.length == length);
        });
    SimilarPrompts& group = found != groups.end()
                                ? *found
                                : groups.emplace_back(SimilarPrompts{
                                      std::move(row_options), 0, {}});
    group.length = std::max(group.length, length);
    group.prompt_indices.push_back(i);
  }
  for (SimilarPrompts& group : groups) {
    group.options.prompt_numbers.clear();
    for (const int64_t index : group.prompt_indices) {
      group.options.prompt_numbers.push_back(options.number_of_prompt(index));
    }
  }
  return groups;
}

/// The prompts of a group, without the padding before all of them.
ModelInput prompts_of(const SimilarPrompts& group, const ModelInput& prompt) {
  const int64_t padding = prompt.input_ids.size(1) - group.length;
  const at::Tensor prompt_indices =
      torch::tensor(group.prompt_indices, torch::kLong)
          .to(prompt.input_ids.device());
  NamedTensors tensors = prompt.named();
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.index_select(0, prompt_indices);
    if (name == "sep") { // counts the padding
      tensor = tensor - padding;
    } else {
      tensor = tensor.slice(tensor.dim() - 1, padding);
    }
  }
  const auto mask = tensors.find("attention_mask");
  if (mask != tensors.end() && mask->second.ne(0).all().item<bool>()) {
    tensors.erase(mask);
  }
  return ModelInput::from_named(tensors);
}

/// generate() of one group after the other.
at::Tensor write_groups(
    Model& model,
    const ModelInput& prompt,
    const std::vector<SimilarPrompts>& groups,
    ParallelRun* parallel,
    const EndsSequence& ends) {
  const GenerateOptions& options = groups.front().options;
  const int64_t rows = copies_in(options);
  const int64_t results = options.num_return_sequences;
  const int64_t given = prompt.input_ids.size(1);
  std::vector<at::Tensor> written;
  int64_t longest = 0;
  for (const SimilarPrompts& group : groups) {
    EndsSequence ends_in_group;
    if (ends) {
      ends_in_group = [&](int64_t row, std::span<const int64_t> tokens) {
        const auto index = static_cast<size_t>(row / rows);
        return ends(group.prompt_indices[index] * rows + row % rows, tokens);
      };
    }
    written.push_back(Writer(
                          model,
                          prompts_of(group, prompt),
                          group.options,
                          parallel,
                          ends_in_group,
                          nullptr)
                          .write()
                          .slice(1, group.length));
    longest = std::max(longest, written.back().size(1));
  }
  at::Tensor all = at::constant_pad_nd(
      repeated(prompt.input_ids.to(at::kCPU, at::kLong), results),
      {0, longest},
      options.pad_token_id);
  for (size_t i = 0; i < groups.size(); ++i) {
    const at::Tensor group_rows = written[i];
    for (int64_t row = 0; row < group_rows.size(0); ++row) {
      const auto index = static_cast<size_t>(row / results);
      all[groups[i].prompt_indices[index] * results + row % results]
          .narrow(0, given, group_rows.size(1))
          .copy_(group_rows[row]);
    }
  }
  return all;
}

} // namespace

GenerateOptions options_after(
    const Model& model,
    const GenerateOptions& options,
    int64_t prompt_length) {
  if (model.first_token()) {
    return options.after(1);
  }
  GenerateOptions counted = options.after(prompt_length);
  const auto most = model.position_limit();
  if (options.fit_to_model && most && !model.fills_blanks()) {
    TESSERA_CHECK(
        prompt_length <= *most,
        "generate: a prompt has {} tokens; the model has {} positions: shorten the prompt",
        prompt_length,
        *most);
    counted.max_new_tokens =
        std::min(counted.max_new_tokens, *most + 1 - prompt_length);
    counted.min_new_tokens =
        std::min(counted.min_new_tokens, counted.max_new_tokens);
  }
  return counted;
}

std::vector<int64_t> new_tokens_of(
    const Model& model,
    const GenerateOptions& options,
    const ModelInput& prompt,
    const at::Tensor& sequences,
    int64_t row) {
  const int64_t index = row / options.num_return_sequences;
  const at::Tensor padding = padding_of(model, prompt);
  const int64_t given = model.first_token() ? 1 : prompt.input_ids.size(1);
  const GenerateOptions counted = options_after(
      model,
      options,
      given - (padding.defined() ? padding[index].item<int64_t>() : 0));
  const at::Tensor added = sequences[row].slice(0, given).contiguous();
  const int64_t* begin = added.const_data_ptr<int64_t>();
  const int64_t* end = begin + std::min(added.numel(), counted.max_new_tokens);
  const auto& ends = options.eos_token_id;
  const int64_t* last =
      std::find_first_of(begin, end, ends.begin(), ends.end());
  return {begin, last == end ? end : last + 1};
}

at::Tensor generate(
    Model& model,
    const ModelInput& prompt,
    const GenerateOptions& options,
    ParallelRun* parallel,
    const EndsSequence& ends,
    PromptCache* kept) {
  TESSERA_CHECK(
      options.stop_strings.empty() || ends,
      "generate: stop_strings is given, but generate() sees tokens only; use zoo::TextGenerator");
  check_prompt(
      model,
      prompt,
      parallel != nullptr && parallel->mesh_or_null() != nullptr);
  options.check();
  TESSERA_CHECK(
      options.prompt_numbers.empty() ||
          static_cast<int64_t>(options.prompt_numbers.size()) ==
              prompt.input_ids.size(0),
      "generate: prompt_numbers has {} numbers, but there are {} prompts; give one for each, or none",
      options.prompt_numbers.size(),
      prompt.input_ids.size(0));
  const auto groups = similar_prompts(model, prompt, options);
  if (groups.size() > 1) {
    return write_groups(model, prompt, groups, parallel, ends);
  }
  return Writer(model, prompt, groups.front().options, parallel, ends, kept)
      .write();
}

} // namespace tessera::zoo
