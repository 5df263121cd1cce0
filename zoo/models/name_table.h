// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a checkpoint of transformers names and keeps the parameters of a model,
// as a table that loading and saving both read.

#include "tessera/sharding/load_weights.h"

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

/// One line: a module of theirs and what it is here. `*` stands for a number,
/// the same ones on both sides; ".weight" and ".bias" behind a name are carried
/// over. With several of ours, theirs is those of ours one after the other,
/// along the output features.
///
///     {"h.*.attn.c_attn",
///      {"layers.*.attention.query", "layers.*.attention.key",
///       "layers.*.attention.value"},
///      NameRule::kTransposed}
struct NameRule {
  enum Layout {
    kSame,
    kTransposed, ///< their matrices are [in, out] (Conv1D)
  };

  std::string theirs;
  std::vector<std::string> ours;
  Layout layout = kSame;
};

/// A model's table. Every parameter must be in one line, but for those of
/// adapters, which have files of their own.
struct NameTable {
  /// Before the names of `base` in checkpoints of models with a head, such as
  /// "transformer."; checkpoints are read with it or without.
  std::string prefix;
  /// What other heads' checkpoints have in place of it; read, not written.
  std::string other_prefix;
  std::vector<NameRule> base;
  std::vector<NameRule> head; ///< without prefix
  /// The model is the base alone: its names are written without the prefix.
  bool is_base = false;
  /// Tensors of theirs that nothing here needs: buffers of old versions, tied
  /// weights saved twice, heads of another task. `*` stands for a number, at
  /// the end for anything; with the prefix or without.
  std::vector<std::string> ignored;
  /// Tensors of theirs that are the same, without prefix: where the files lack
  /// the second, it is read from the first of these that they have.
  std::vector<std::pair<std::string, std::string>> tied;
  /// The parameters are those of a pipeline's stage, or some of the experts:
  /// tensors that are in a line and not here are other ranks'.
  bool is_part = false;
  /// The table of an adapter's files: parameters in no line are in others'.
  bool is_adapter = false;
};

/// A tensor of a checkpoint and the parameters that are in it.
struct NamedWeight {
  std::string name; ///< theirs
  std::vector<std::string> ours;
  std::vector<std::vector<int64_t>> sizes; ///< of ours, whole
  bool transposed = false;

  std::vector<int64_t> shape() const; ///< theirs
  /// Theirs from all of ours, whole. Contiguous.
  at::Tensor assemble(const std::vector<at::Tensor>& parameters) const;
};

/// As LoadWeightsOptions::pieces.
using PiecesOfWeight =
    std::function<std::optional<std::vector<WeightPiece>>(std::string_view)>;

/// A table filled in for the parameters of one model.
class WeightNames {
 public:
  /// Parameters may be sharded, without memory, or a tensor-parallel rank's
  /// parts.
  /// @throws tessera::Error when a parameter is in no line or in several.
  WeightNames(const torch::nn::Module& module, const NameTable& table);

  /// The same for a whole model of which this rank may have a part only: for
  /// saving. @param sizes of the parameters, by name.
  WeightNames(
      const std::map<std::string, std::vector<int64_t>>& sizes,
      const NameTable& table);

  /// All tensors of a checkpoint, by name.
  const std::vector<NamedWeight>& weights() const {
    return weights_;
  }
  /// Whether a parameter of ours is in these files.
  bool has(const std::string& our_name) const {
    return places_.contains(our_name);
  }
  /// The tensor that a parameter of ours is in, and its place among `ours`.
  const NamedWeight& of(const std::string& our_name, size_t* place) const;

  /// For load_weights(): what of a checkpoint's tensor goes where. Keeps what
  /// it needs; the module may go.
  /// @param in_files all names of the checkpoint, for NameTable::tied.
  PiecesOfWeight pieces(const std::vector<std::string>& in_files = {}) const;

 private:
  struct Part {
    int64_t dim = 0;
    int64_t begin = 0;
    int64_t length = 0;
  };

  void add_weights(const std::map<std::string, std::vector<int64_t>>& sizes);
  std::vector<WeightPiece> pieces_of(const NamedWeight& weight) const;

  NameTable table_;
  std::vector<NamedWeight> weights_;
  std::map<std::string, std::pair<size_t, size_t>> places_; ///< of ours
  std::map<std::string, Part> parts_; ///< of ours that are divided
};

} // namespace tessera::zoo
