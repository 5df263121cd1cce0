// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/sentence_embedding.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <limits>
#include <string>
#include <utility>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

struct PoolingName {
  const char* name; ///< of `pooling_mode`
  const char* flag; ///< in older files
  Pooling pooling;
};

/// In the order in which the poolings of several flags are concatenated.
constexpr PoolingName kPoolings[] = {
    {"cls", "pooling_mode_cls_token", Pooling::kFirst},
    {"max", "pooling_mode_max_tokens", Pooling::kMax},
    {"mean", "pooling_mode_mean_tokens", Pooling::kMean},
    {"mean_sqrt_len_tokens",
     "pooling_mode_mean_sqrt_len_tokens",
     Pooling::kMeanRoot},
    {"weightedmean",
     "pooling_mode_weightedmean_tokens",
     Pooling::kWeightedMean},
    {"lasttoken", "pooling_mode_lasttoken", Pooling::kLast},
};

/// The features of one token of each row.
at::Tensor token_at(const at::Tensor& hidden, const at::Tensor& positions) {
  const at::Tensor rows = torch::arange(positions.size(0), positions.options());
  return hidden.index({rows, positions});
}

/// The position of each row's first or last token: int64 [B].
at::Tensor end_of(const at::Tensor& seen, bool last) {
  const at::Tensor positions =
      torch::arange(1, seen.size(1) + 1, seen.options().dtype(at::kLong));
  return (seen * (last ? positions : positions.flip(0))).argmax(1);
}

Pooling pooling_of(const nlohmann::json& name, const std::string& origin) {
  std::string known;
  for (const PoolingName& one : kPoolings) {
    if (name == one.name) {
      return one.pooling;
    }
    known += (known.empty() ? "" : ", ") + std::string(one.name);
  }
  TESSERA_FAIL(
      "{}: 'pooling_mode' is {}; the supported ones are {}",
      origin,
      runtime::show_json(name),
      known);
}

std::vector<Pooling> poolings_of(const runtime::JsonValue& fields) {
  std::vector<Pooling> found;
  const auto mode = fields.value().find("pooling_mode");
  if (mode != fields.value().end() && mode->is_array()) {
    for (const nlohmann::json& one : *mode) {
      found.push_back(pooling_of(one, fields.place()));
    }
  } else if (mode != fields.value().end()) {
    found.push_back(pooling_of(*mode, fields.place()));
  } else {
    for (const PoolingName& one : kPoolings) {
      if (fields.get_or<bool>(one.flag, false)) {
        found.push_back(one.pooling);
      }
    }
  }
  return found.empty() ? std::vector<Pooling>{Pooling::kMean} : found;
}

/// One entry of modules.json.
struct ModuleLine {
  std::string kind; ///< the last part of the class's name
  std::string path;
};

std::vector<ModuleLine> modules_of(const fs::path& file) {
  const nlohmann::json list =
      runtime::parse_json(runtime::read_text_file(file), file.string());
  TESSERA_CHECK(
      list.is_array() && !list.empty(),
      "{} is {}, not a list of modules; fetch the model's folder again",
      file,
      runtime::show_json(list));
  std::vector<ModuleLine> modules;
  for (const nlohmann::json& one : list) {
    const auto fields = runtime::json_object(one, file.string() + ": a module");
    const auto type = fields.get_or<std::string>("type", "");
    ModuleLine line{
        type.substr(type.rfind('.') + 1),
        fields.get_or<std::string>("path", "")};
    TESSERA_CHECK(
        line.path.empty() ||
            (fs::path(line.path).filename() == line.path &&
             line.path.find('\0') == std::string::npos &&
             line.path.find_first_not_of('.') != std::string::npos),
        "{}: the module '{}' has the 'path' {}, which is not the name of a folder beside the file",
        file,
        line.kind,
        runtime::show_json(line.path));
    modules.push_back(std::move(line));
  }
  return modules;
}

fs::path model_folder(const fs::path& folder) {
  const fs::path file = folder / "modules.json";
  return fs::exists(file) ? folder / modules_of(file).front().path : folder;
}

} // namespace

at::Tensor pool_tokens(
    Pooling pooling,
    const at::Tensor& hidden,
    const at::Tensor& attention_mask) {
  TESSERA_CHECK(
      hidden.dim() == 3 &&
          (!attention_mask.defined() ||
           attention_mask.sizes() == hidden.sizes().slice(0, 2)),
      "pool_tokens: hidden states are {} and the mask {}; they must be [batch, sequence, features] and [batch, sequence]",
      hidden.sizes(),
      attention_mask.defined() ? attention_mask.sizes() : at::IntArrayRef());
  const at::Tensor seen =
      attention_mask.defined()
          ? attention_mask.ne(0)
          : torch::ones(
                hidden.sizes().slice(0, 2), hidden.options().dtype(at::kBool));
  const auto mean = [&](const at::Tensor& weights, bool root) {
    const at::Tensor each = weights.to(hidden.scalar_type()).unsqueeze(-1);
    const at::Tensor total = each.sum(1).clamp_min(1e-9);
    return (hidden * each).sum(1) / (root ? total.sqrt() : total);
  };
  switch (pooling) {
    case Pooling::kFirst:
      return token_at(hidden, end_of(seen, /*last=*/false));
    case Pooling::kLast:
      return token_at(hidden, end_of(seen, /*last=*/true));
    case Pooling::kMean:
      return mean(seen, false);
    case Pooling::kMeanRoot:
      return mean(seen, true);
    case Pooling::kWeightedMean: {
      const at::Tensor positions =
          torch::arange(1, seen.size(1) + 1, seen.options().dtype(at::kLong));
      const at::Tensor before = end_of(seen, /*last=*/false).unsqueeze(1);
      return mean(seen * (positions - before), false);
    }
    case Pooling::kMax:
      break;
  }
  return hidden
      .masked_fill(
          ~seen.unsqueeze(-1), -std::numeric_limits<double>::infinity())
      .amax(1);
}

SentenceEmbedding SentenceEmbedding::from_folder(
    const fs::path& folder,
    int64_t features) {
  SentenceEmbedding embedding;
  const fs::path file = folder / "modules.json";
  if (!fs::exists(file)) {
    return embedding;
  }
  const std::vector<ModuleLine> modules = modules_of(file);
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string& kind = modules[i].kind;
    const bool in_order = i == 0   ? kind == "Transformer"
                          : i == 1 ? kind == "Pooling"
                                   : i == 2 && kind == "Normalize";
    TESSERA_CHECK(
        in_order,
        "{}: the 'type' of module {} is '{}'; Transformer, Pooling and Normalize are implemented, in this order",
        file,
        i,
        kind);
    if (kind == "Pooling") {
      const fs::path path = folder / modules[i].path / "config.json";
      TESSERA_CHECK(
          fs::exists(path),
          "{} does not exist, but a 'path' in {} refers to it",
          path,
          file);
      const auto fields = runtime::read_json_object(path);
      embedding.poolings = poolings_of(fields);
      const int64_t stated = fields.get_or<int64_t>(
          "embedding_dimension",
          fields.get_or<int64_t>("word_embedding_dimension", features));
      TESSERA_CHECK(
          stated == features,
          "{}: 'embedding_dimension' (or 'word_embedding_dimension') is {}, but the model has {} features",
          path,
          stated,
          features);
      TESSERA_CHECK(
          fields.get_or<bool>("include_prompt", true),
          "{}: 'include_prompt' is false; only true is implemented",
          path);
    }
    embedding.normalize = embedding.normalize || kind == "Normalize";
  }
  return embedding;
}

at::Tensor SentenceEmbedding::operator()(
    const at::Tensor& hidden,
    const at::Tensor& attention_mask) const {
  std::vector<at::Tensor> parts;
  for (const Pooling pooling : poolings) {
    parts.push_back(pool_tokens(pooling, hidden, attention_mask));
  }
  const at::Tensor all = at::cat(parts, -1);
  return normalize ? all / all.norm(2, {-1}, /*keepdim=*/true).clamp_min(1e-12)
                   : all;
}

SentenceEncoder::SentenceEncoder(
    std::shared_ptr<Model> model,
    SentenceEmbedding embedding)
    : model_(std::move(model)), embedding_(std::move(embedding)) {
  TESSERA_CHECK(
      !embedding_.poolings.empty(), "SentenceEncoder: no pooling is given");
}

SentenceEncoder SentenceEncoder::from_folder(
    const fs::path& folder,
    const FromPretrainedOptions& options) {
  const fs::path base_folder = model_folder(folder);
  const auto config = runtime::read_json_object(base_folder / "config.json");
  FromPretrainedOptions base = options;
  if (base.architecture.empty() && !base.head.accepts) {
    base.architecture = base_architecture(config.value(), config.place());
  }
  auto model = from_pretrained(base_folder, base);
  const ConfigFields fields(config.value(), config.place());
  return {
      std::move(model),
      SentenceEmbedding::from_folder(
          folder, fields.size({"hidden_size", "n_embd", "d_model"}))};
}

at::Tensor SentenceEncoder::forward(const ModelInput& input) {
  const ModelOutput output = model_->forward(input);
  TESSERA_CHECK(
      output.last_hidden_state.defined(),
      "SentenceEncoder: the model returns no last_hidden_state; use its base model, such as BertModel");
  return embedding_(output.last_hidden_state, input.attention_mask);
}

} // namespace tessera::zoo
