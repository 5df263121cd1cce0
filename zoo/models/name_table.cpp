// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/name_table.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/parallel_module.h"
#include "tessera/zoo/layers/linear.h"

#include <torch/types.h>

#include <cctype>
#include <memory>

namespace tessera::zoo {

namespace {

/// Whether `text` begins with the pattern, its numbers, and what follows.
struct Match {
  bool found = false;
  std::vector<std::string> numbers;
  std::string rest;
};

Match match_start(std::string_view pattern, std::string_view text) {
  Match match;
  size_t at = 0;
  for (const char c : pattern) {
    if (c != '*') {
      if (at == text.size() || text[at] != c) {
        return {};
      }
      ++at;
      continue;
    }
    const size_t begin = at;
    while (at < text.size() &&
           std::isdigit(static_cast<unsigned char>(text[at])) != 0) {
      ++at;
    }
    if (at == begin) {
      return {};
    }
    match.numbers.emplace_back(text.substr(begin, at - begin));
  }
  match.found = true;
  match.rest = text.substr(at);
  return match;
}

/// A module's name with numbers, and its parameter.
Match match_module(std::string_view pattern, std::string_view name) {
  Match match = match_start(pattern, name);
  match.found = match.found && (match.rest.empty() || match.rest == ".weight" ||
                                match.rest == ".bias");
  return match;
}

bool is_ignored(std::string_view pattern, std::string_view name) {
  if (pattern.ends_with('*')) {
    return match_start(pattern.substr(0, pattern.size() - 1), name).found;
  }
  const Match match = match_start(pattern, name);
  return match.found && match.rest.empty();
}

std::string filled(std::string_view pattern, const Match& match) {
  std::string name;
  size_t number = 0;
  for (const char c : pattern) {
    if (c == '*') {
      name += match.numbers.at(number++);
    } else {
      name += c;
    }
  }
  return name + match.rest;
}

/// What TensorFlow's checkpoints call the parameters of norms, and the oldest
/// ones of PyTorch after them.
std::string modern_name(std::string_view name) {
  std::string result(name);
  for (const auto& [old, now] :
       {std::pair(".gamma", ".weight"), std::pair(".beta", ".bias")}) {
    if (name.ends_with(old)) {
      result.replace(result.rfind('.'), std::string::npos, now);
    }
  }
  return result;
}

/// Whether some line is about a tensor of theirs of this name.
bool has_line(const std::vector<NameRule>& rules, std::string_view name) {
  for (const NameRule& rule : rules) {
    if (match_module(rule.theirs, name).found) {
      return true;
    }
  }
  return false;
}

/// The line and the place in it that a parameter has.
struct Line {
  const NameRule* rule = nullptr;
  Match match;
  bool is_head = false;
};

Line line_of(const NameTable& table, const std::string& name) {
  Line line;
  const auto look = [&](const std::vector<NameRule>& rules, bool is_head) {
    for (const NameRule& rule : rules) {
      for (const std::string& ours : rule.ours) {
        Match match = match_module(ours, name);
        if (!match.found) {
          continue;
        }
        TESSERA_CHECK(
            line.rule == nullptr,
            "the name table has two lines for '",
            name,
            "': '",
            line.rule->theirs,
            "' and '",
            rule.theirs,
            "'");
        line = {&rule, std::move(match), is_head};
      }
    }
  };
  look(table.base, false);
  look(table.head, true);
  TESSERA_CHECK(
      line.rule != nullptr || table.is_adapter,
      "the name table has no line for the parameter '",
      name,
      "'");
  return line;
}

} // namespace

std::vector<int64_t> NamedWeight::shape() const {
  std::vector<int64_t> shape = sizes.front();
  for (size_t i = 1; i < sizes.size(); ++i) {
    shape[0] += sizes[i][0];
  }
  if (transposed) {
    std::swap(shape[0], shape[1]);
  }
  return shape;
}

at::Tensor NamedWeight::assemble(
    const std::vector<at::Tensor>& parameters) const {
  const at::Tensor whole =
      parameters.size() == 1 ? parameters.front() : at::cat(parameters, 0);
  return (transposed ? whole.t() : whole).contiguous();
}

WeightNames::WeightNames(
    const torch::nn::Module& module,
    const NameTable& table)
    : table_(table) {
  std::map<std::string, std::vector<int64_t>> sizes;
  for (const auto& item : module.named_parameters()) {
    sizes.emplace(item.key(), item.value().sizes().vec());
  }
  for (const auto& child : module.named_modules()) {
    const auto* parallel = dynamic_cast<const ParallelModule*>(&*child.value());
    if (parallel == nullptr) {
      continue;
    }
    const int rank = parallel->how().group->rank();
    for (const auto& [name, part] : parallel->parts()) {
      const std::string full = child.key() + "." + name;
      sizes.at(full)[static_cast<size_t>(part.dim)] = part.split.size();
      parts_.emplace(
          full,
          Part{part.dim, part.split.begin(rank), part.split.length(rank)});
    }
  }
  add_weights(sizes);
}

WeightNames::WeightNames(
    const std::map<std::string, std::vector<int64_t>>& sizes,
    const NameTable& table)
    : table_(table) {
  add_weights(sizes);
}

void WeightNames::add_weights(
    const std::map<std::string, std::vector<int64_t>>& sizes) {
  std::map<std::string, size_t> index;
  for (const auto& item : sizes) {
    if (is_adapter_parameter(item.first) && !table_.is_adapter) {
      continue;
    }
    const Line line = line_of(table_, item.first);
    if (line.rule == nullptr) {
      continue;
    }
    NamedWeight weight;
    weight.name =
        (line.is_head || table_.is_base ? std::string() : table_.prefix) +
        filled(line.rule->theirs, line.match);
    const auto [found, is_new] = index.emplace(weight.name, weights_.size());
    if (!is_new) {
      continue;
    }
    for (const std::string& pattern : line.rule->ours) {
      const std::string ours = filled(pattern, line.match);
      const auto its = sizes.find(ours);
      TESSERA_CHECK(
          its != sizes.end(),
          "the name table's '",
          line.rule->theirs,
          "' needs '",
          ours,
          "', which the model does not have");
      places_.emplace(ours, std::pair(found->second, weight.ours.size()));
      weight.ours.push_back(ours);
      weight.sizes.push_back(its->second);
    }
    weight.transposed = line.rule->layout == NameRule::kTransposed &&
                        weight.sizes.front().size() == 2;
    weights_.push_back(std::move(weight));
  }
}

const NamedWeight& WeightNames::of(const std::string& our_name, size_t* place)
    const {
  const auto found = places_.find(our_name);
  TESSERA_CHECK(
      found != places_.end(),
      "'",
      our_name,
      "' is no parameter of the model that the names were made for");
  if (place != nullptr) {
    *place = found->second.second;
  }
  return weights_[found->second.first];
}

std::vector<WeightPiece> WeightNames::pieces_of(
    const NamedWeight& weight) const {
  const std::vector<int64_t> shape = weight.shape();
  std::vector<WeightPiece> pieces;
  int64_t row = 0; // of ours, where the piece begins
  for (size_t i = 0; i < weight.ours.size(); ++i) {
    WeightPiece piece{weight.ours[i], shape, 0, weight.sizes[i], {}};
    piece.strides.assign(piece.sizes.size(), 1);
    for (size_t d = piece.sizes.size(); d-- > 1;) {
      piece.strides[d - 1] = piece.strides[d] * piece.sizes[d];
    }
    if (weight.transposed) {
      piece.strides = {1, shape[1]};
    }
    piece.offset = row * piece.strides[0];
    row += piece.sizes[0];
    if (const auto part = parts_.find(piece.name); part != parts_.end()) {
      const auto dim = static_cast<size_t>(part->second.dim);
      piece.offset += part->second.begin * piece.strides[dim];
      piece.sizes[dim] = part->second.length;
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

PiecesOfWeight WeightNames::pieces() const {
  auto by_name = std::make_shared<
      std::map<std::string, std::vector<WeightPiece>, std::less<>>>();
  for (const NamedWeight& weight : weights_) {
    by_name->emplace(weight.name, pieces_of(weight));
  }
  return [by_name, table = table_](
             std::string_view old) -> std::optional<std::vector<WeightPiece>> {
    std::string modern = modern_name(old);
    if (!table.other_prefix.empty() && modern.starts_with(table.other_prefix)) {
      modern.replace(0, table.other_prefix.size(), table.prefix);
    }
    const std::string_view name = modern;
    const std::string with = table.prefix + modern;
    const std::string_view without = name.starts_with(table.prefix)
                                         ? name.substr(table.prefix.size())
                                         : name;
    for (const std::string_view alias :
         {name, std::string_view(with), without}) {
      if (const auto found = by_name->find(alias); found != by_name->end()) {
        return found->second;
      }
    }
    for (const std::string& pattern : table.ignored) {
      if (is_ignored(pattern, name) || is_ignored(pattern, without)) {
        return std::vector<WeightPiece>();
      }
    }
    if (table.is_part &&
        (has_line(table.base, without) || has_line(table.head, name))) {
      return std::vector<WeightPiece>();
    }
    return std::nullopt;
  };
}

} // namespace tessera::zoo
