// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MegatronCheckpoint` reads the files of a checkpoint of Megatron-LM in its
// classic format (`--ckpt-format torch`): mp_rank_TT/model_optim_rng.pt or,
// with a pipeline, mp_rank_TT_PPP.

#include "tessera/runtime/io/torch_file.h"
#include "tessera/sharding/weights/weight_entry.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

/// Whether a folder, or the one that its latest_checkpointed_iteration.txt
/// names, is such a checkpoint.
bool is_megatron(const std::filesystem::path& folder);

/// What names of layers begin with in MegatronCheckpoint::tensors().
inline constexpr std::string_view kMegatronLayers = "decoder.layers.";

class MegatronCheckpoint {
 public:
  /// @throws tessera::Error naming the file and what is wrong: also if files of
  ///   some ranks are missing, or experts are divided.
  explicit MegatronCheckpoint(const std::filesystem::path& folder);

  const std::filesystem::path& path() const {
    return path_;
  }
  int tensor_ranks() const {
    return tensor_ranks_;
  }
  double version() const {
    return version_;
  }

  /// Whether the options of the run were saved (versions of 2021 and later).
  bool has_options() const {
    return options_ != nullptr;
  }
  /// Options of the run (`args`); nothing if it is absent, None or of another
  /// type.
  std::optional<int64_t> integer(const char* option) const;
  std::optional<double> number(const char* option) const;
  std::optional<bool> flag(const char* option) const;
  std::optional<std::string> text(const char* option) const;

  /// Parts of all tensors by tensor-parallel rank. Names are those of the
  /// model, without "language_model." and with the numbers that layers have in
  /// the whole model. Copies that other pipeline stages have are left out.
  const std::map<std::string, std::vector<sharding::WeightEntry>>& tensors()
      const {
    return tensors_;
  }
  /// What keeps the files open.
  const std::vector<std::shared_ptr<const void>>& files() const {
    return files_;
  }

 private:
  using File = std::shared_ptr<const runtime::TorchFile>;

  void open_files();
  void read_header(const runtime::TorchFile& file);
  /// @param models the same chunk of layers of every tensor-parallel rank.
  /// @return the number of its layers.
  int64_t add_chunk(
      const std::vector<File>& ranks,
      const std::string& model,
      int64_t first_layer);
  const runtime::PickleNode* option(const char* name) const;

  std::filesystem::path path_;
  int tensor_ranks_ = 0;
  int stages_ = 0;
  double version_ = 0;
  const runtime::PickleNode* options_ = nullptr; ///< of the first file
  std::vector<std::vector<File>> opened_; ///< by stage, tensor-parallel rank
  std::vector<std::shared_ptr<const void>> files_;
  std::map<std::string, std::vector<sharding::WeightEntry>> tensors_;
};

} // namespace tessera::zoo
