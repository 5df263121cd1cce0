// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/megatron_checkpoint.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/weights/torch_checkpoint.h"
#include "tessera/sharding/weights/torch_weights.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

namespace tessera::zoo {

namespace fs = std::filesystem;
using runtime::PickleKind;
using runtime::PickleNode;

namespace {

constexpr std::string_view kRank = "mp_rank_";
constexpr const char* kGiveAllRanks =
    "; give a checkpoint of Megatron-LM in the format `torch`, with the files of all tensor- and pipeline-parallel ranks";

/// The file of a rank in its folder.
std::optional<fs::path> file_in(const fs::path& folder) {
  for (const char* name : {"model_optim_rng.pt", "model_rng.pt"}) {
    if (fs::is_regular_file(folder / name)) {
      return folder / name;
    }
  }
  return std::nullopt;
}

/// The numbers in "mp_rank_01_002"; empty if it is another name.
std::vector<int> rank_numbers_in(const std::string& name) {
  std::vector<int> numbers;
  if (!name.starts_with(kRank)) {
    return numbers;
  }
  size_t at = kRank.size();
  while (at < name.size()) {
    const size_t end = std::min(name.find('_', at), name.size());
    const std::string digits = name.substr(at, end - at);
    constexpr size_t kMostDigits = 6;
    if (digits.empty() || digits.size() > kMostDigits ||
        !std::all_of(digits.begin(), digits.end(), [](unsigned char c) {
          return std::isdigit(c) != 0;
        })) {
      return {};
    }
    numbers.push_back(std::stoi(digits));
    at = end + 1;
  }
  return numbers;
}

/// Without what wraps a model; nothing for what is no weight.
std::optional<std::string> model_name(std::string name) {
  for (const std::string_view wrapper : {"module.", "language_model."}) {
    if (name.starts_with(wrapper)) {
      name.erase(0, wrapper.size());
    }
  }
  for (const std::string_view block : {"encoder.", "transformer."}) {
    if (name.starts_with(block)) {
      name = "decoder." + name.substr(block.size());
    }
  }
  const bool is_weight = !name.ends_with("_extra_state") &&
                         !name.ends_with("inv_freq") &&
                         !name.starts_with("word_embeddings_for_head");
  return is_weight ? std::optional(std::move(name)) : std::nullopt;
}

/// The number of the layer of "decoder.layers.3.mlp"; nothing for others.
std::optional<int64_t> layer_number(const std::string& name) {
  if (!name.starts_with(kMegatronLayers)) {
    return std::nullopt;
  }
  const std::string digits = name.substr(
      kMegatronLayers.size(),
      name.find('.', kMegatronLayers.size()) - kMegatronLayers.size());
  constexpr size_t kMostDigits = 6;
  return !digits.empty() && digits.size() <= kMostDigits &&
                 digits.find_first_not_of("0123456789") == std::string::npos
             ? std::optional<int64_t>(std::stoll(digits))
             : std::nullopt;
}

} // namespace

bool is_megatron(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    return false;
  }
  fs::path step = folder;
  try {
    step = sharding::step_folder(folder);
  } catch (const Error&) {
    return false; // it names a folder that is not there
  }
  const auto has_file = [&](const char* rank) {
    return file_in(step / rank).has_value();
  };
  return has_file("mp_rank_00") || has_file("mp_rank_00_000");
}

MegatronCheckpoint::MegatronCheckpoint(const fs::path& folder)
    : path_(sharding::step_folder(folder)) {
  open_files();
  read_header(*opened_.front().front());
  // Chunks of an interleaved pipeline are "model0", "model1", ...; the layers
  // of all stages' first chunks come before those of the second ones.
  int64_t layers = 0;
  const PickleNode& root = opened_.front().front()->root();
  if (root.find("model0") == nullptr) {
    for (const auto& ranks : opened_) {
      layers += add_chunk(ranks, "model", layers);
    }
  }
  for (int chunk = 0; root.find("model" + std::to_string(chunk)) != nullptr;
       ++chunk) {
    for (const auto& ranks : opened_) {
      layers += add_chunk(ranks, "model" + std::to_string(chunk), layers);
    }
  }
}

void MegatronCheckpoint::open_files() {
  std::map<std::pair<int, int>, fs::path> found; // stage, tensor-parallel rank
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename();
    const std::vector<int> numbers = rank_numbers_in(name);
    TESSERA_CHECK(
        numbers.size() <= 2,
        "{}: the folder {} is that of a rank with a part of the experts, which is not supported{}",
        path_,
        name,
        kGiveAllRanks);
    if (!numbers.empty()) {
      const auto file = file_in(entry.path());
      TESSERA_CHECK(
          file, "{} has no model_optim_rng.pt{}", entry.path(), kGiveAllRanks);
      found[{numbers.size() == 2 ? numbers[1] : 0, numbers[0]}] = *file;
    }
  }
  TESSERA_CHECK(!found.empty(), "{} has no mp_rank_00{}", path_, kGiveAllRanks);
  stages_ = found.rbegin()->first.first + 1;
  for (const auto& [ranks, file] : found) {
    tensor_ranks_ = std::max(tensor_ranks_, ranks.second + 1);
  }
  TESSERA_CHECK(
      static_cast<int64_t>(found.size()) ==
          int64_t{stages_} * int64_t{tensor_ranks_},
      "{} has the files of {} ranks, but there should be {} tensor-parallel ranks in each of {} pipeline stages{}",
      path_,
      found.size(),
      tensor_ranks_,
      stages_,
      kGiveAllRanks);
  opened_.resize(static_cast<size_t>(stages_));
  for (const auto& [ranks, file] : found) {
    const auto opened = std::make_shared<const runtime::TorchFile>(
        runtime::TorchFile::open(file));
    opened_[static_cast<size_t>(ranks.first)].push_back(opened);
    files_.push_back(opened);
  }
}

void MegatronCheckpoint::read_header(const runtime::TorchFile& file) {
  const PickleNode& root = file.root();
  TESSERA_CHECK(
      root.is(PickleKind::kDict) &&
          (root.find("model") != nullptr || root.find("model0") != nullptr),
      "{}: the first file has {} without 'model'{}",
      path_,
      show(root),
      kGiveAllRanks);
  if (const PickleNode* version = root.find("checkpoint_version")) {
    version_ = version->is(PickleKind::kInt)
                   ? static_cast<double>(version->integer)
                   : version->number;
  }
  options_ = root.find("args");
  for (const auto& [name, ranks] :
       {std::pair{"tensor_model_parallel_size", tensor_ranks_},
        std::pair{"pipeline_model_parallel_size", stages_}}) {
    TESSERA_CHECK(
        integer(name).value_or(ranks) == ranks,
        "{}: the run had {} = {}, but there are files of {} ranks{}",
        path_,
        name,
        integer(name).value_or(0),
        ranks,
        kGiveAllRanks);
  }
}

int64_t MegatronCheckpoint::add_chunk(
    const std::vector<File>& ranks,
    const std::string& model,
    int64_t first_layer) {
  int64_t layers = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const PickleNode* weights = ranks[rank]->root().find(model);
    TESSERA_CHECK(
        weights != nullptr,
        "{}: the file of a rank has no '{}'{}",
        path_,
        model,
        kGiveAllRanks);
    for (const auto& [key, tensor] : ranks[rank]->tensors_in(*weights)) {
      auto name = model_name(key);
      if (!name) {
        continue;
      }
      if (const auto layer = layer_number(*name)) {
        layers = std::max(layers, *layer + 1);
        const size_t end = name->find('.', kMegatronLayers.size());
        *name = std::string(kMegatronLayers) +
                std::to_string(first_layer + *layer) + name->substr(end);
      }
      std::vector<sharding::WeightEntry>& parts = tensors_[*name];
      if (parts.size() == rank) {
        parts.push_back(sharding::torch_entry(*name, tensor));
      } else {
        TESSERA_CHECK(
            parts.size() == ranks.size(), // a copy of an earlier stage's
            "{}: only {} of {} tensor-parallel ranks have '{}'{}",
            path_,
            parts.size(),
            ranks.size(),
            *name,
            kGiveAllRanks);
      }
    }
  }
  return layers;
}

const PickleNode* MegatronCheckpoint::option(const char* name) const {
  return options_ == nullptr               ? nullptr
         : options_->is(PickleKind::kDict) ? options_->find(name)
                                           : options_->attribute(name);
}

std::optional<int64_t> MegatronCheckpoint::integer(const char* name) const {
  const PickleNode* found = option(name);
  return found != nullptr && found->is(PickleKind::kInt)
             ? std::optional(found->integer)
             : std::nullopt;
}

std::optional<double> MegatronCheckpoint::number(const char* name) const {
  const PickleNode* found = option(name);
  if (found != nullptr && found->is(PickleKind::kInt)) {
    return static_cast<double>(found->integer);
  }
  return found != nullptr && found->is(PickleKind::kFloat)
             ? std::optional(found->number)
             : std::nullopt;
}

std::optional<bool> MegatronCheckpoint::flag(const char* name) const {
  const PickleNode* found = option(name);
  return found != nullptr && found->is(PickleKind::kBool)
             ? std::optional(found->integer != 0)
             : std::nullopt;
}

std::optional<std::string> MegatronCheckpoint::text(const char* name) const {
  const PickleNode* found = option(name);
  return found != nullptr && found->is(PickleKind::kString)
             ? std::optional(found->text)
             : std::nullopt;
}

} // namespace tessera::zoo
