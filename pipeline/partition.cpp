// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/partition.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace tessera::pipeline {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

void check_numbers(std::size_t layers, int model_chunks) {
  TESSERA_CHECK(
      model_chunks >= 1,
      "a pipeline has 1 or more pieces, but got {}.",
      model_chunks);
  TESSERA_CHECK(
      layers >= static_cast<std::size_t>(model_chunks),
      "{} layers cannot be cut into {} pieces of at least one layer; use fewer pipeline stages or fewer chunks.",
      layers,
      model_chunks);
}

/// The weight of layers [begin, end) as piece `model_chunk`; kNever if not
/// allowed.
using ModelChunkWeight =
    std::function<double(int model_chunk, int begin, int end)>;

struct Cut {
  LayerPartition partition;
  double heaviest = kNever; ///< kNever: there is no cut
};

/// The cut whose heaviest piece is lightest. Dynamic programming from the last
/// piece to the first.
Cut lightest_cut(int layers, int model_chunks, const ModelChunkWeight& weight) {
  const auto row = static_cast<std::size_t>(layers) + 1;
  // rest[piece][begin]: the heaviest of `model_chunk` and those after it if it
  // begins at that layer; end[piece][begin]: where it then ends.
  std::vector<std::vector<double>> rest(
      static_cast<std::size_t>(model_chunks) + 1,
      std::vector<double>(row, kNever));
  std::vector<std::vector<int>> ends(
      static_cast<std::size_t>(model_chunks), std::vector<int>(row, layers));
  rest.back().back() = 0;
  for (int model_chunk = model_chunks; model_chunk-- > 0;) {
    const auto p = static_cast<std::size_t>(model_chunk);
    for (int begin = model_chunk; begin < layers; ++begin) {
      const auto b = static_cast<std::size_t>(begin);
      for (int end = begin + 1; end <= layers; ++end) {
        const double after = rest[p + 1][static_cast<std::size_t>(end)];
        if (after < rest[p][b]) {
          const double all = std::max(after, weight(model_chunk, begin, end));
          if (all < rest[p][b]) {
            rest[p][b] = all;
            ends[p][b] = end;
          }
        }
      }
    }
  }
  Cut cut{{{0}}, rest[0][0]};
  for (const auto& by_begin : ends) {
    const int begin = cut.partition.bounds.back();
    cut.partition.bounds.push_back(by_begin[static_cast<std::size_t>(begin)]);
  }
  return cut;
}

/// Sums over layers [begin, end) in constant time.
class CostSums {
 public:
  explicit CostSums(const std::vector<LayerCost>& costs) : sums_(1) {
    sums_[0] = {0, 0, 0};
    for (const LayerCost& cost : costs) {
      TESSERA_CHECK(
          cost.time >= 0 && std::isfinite(cost.time) && cost.state_bytes >= 0 &&
              cost.activation_bytes >= 0,
          "layer {} has a cost that is negative or not finite.",
          sums_.size() - 1);
      const LayerCost& sum = sums_.back();
      sums_.push_back(
          {sum.time + cost.time,
           sum.state_bytes + cost.state_bytes,
           sum.activation_bytes + cost.activation_bytes});
    }
  }

  double time(int begin, int end) const {
    return at(end).time - at(begin).time;
  }

  /// The fraction of a limit that is used; 1 is all of it.
  double use(const ModelChunkLimit& limit, int begin, int end) const {
    const int64_t bytes =
        at(end).state_bytes - at(begin).state_bytes +
        limit.stored_micro_batches *
            (at(end).activation_bytes - at(begin).activation_bytes);
    return static_cast<double>(bytes) / static_cast<double>(limit.bytes);
  }

 private:
  const LayerCost& at(int layer) const {
    return sums_[static_cast<std::size_t>(layer)];
  }

  std::vector<LayerCost> sums_;
};

void check_limits(
    const std::vector<ModelChunkLimit>& limits,
    int model_chunks) {
  TESSERA_CHECK(
      limits.empty() || limits.size() == static_cast<std::size_t>(model_chunks),
      "{} memory limits for {} pieces; give one for each, or none.",
      limits.size(),
      model_chunks);
  for (const ModelChunkLimit& limit : limits) {
    TESSERA_CHECK(
        limit.bytes > 0 && limit.stored_micro_batches >= 0,
        "the memory limit of piece {} is {} bytes with {} micro-batches stored; it must have more than 0 bytes and at least 0 micro-batches.",
        &limit - limits.data(),
        limit.bytes,
        limit.stored_micro_batches);
  }
}

} // namespace

int LayerPartition::model_chunk_of(int layer) const {
  TESSERA_CHECK(
      layer >= 0 && layer < bounds.back(),
      "the pipeline has no layer {}; its layers are 0 to {}.",
      layer,
      bounds.back() - 1);
  return static_cast<int>(
      std::upper_bound(bounds.begin(), bounds.end(), layer) - bounds.begin() -
      1);
}

LayerPartition partition_by_count(int layers, int model_chunks) {
  check_numbers(static_cast<std::size_t>(std::max(layers, 0)), model_chunks);
  LayerPartition partition{{0}};
  for (int model_chunk = 0; model_chunk < model_chunks; ++model_chunk) {
    const bool longer = model_chunk >= model_chunks - layers % model_chunks;
    partition.bounds.push_back(
        partition.bounds.back() + layers / model_chunks + (longer ? 1 : 0));
  }
  return partition;
}

LayerPartition partition_by_cost(
    const std::vector<LayerCost>& costs,
    int model_chunks,
    const std::vector<ModelChunkLimit>& limits) {
  check_numbers(costs.size(), model_chunks);
  check_limits(limits, model_chunks);
  const CostSums sums(costs);
  const auto layers = static_cast<int>(costs.size());
  const auto use = [&](int model_chunk, int begin, int end) {
    return limits.empty()
               ? 0.0
               : sums.use(
                     limits[static_cast<std::size_t>(model_chunk)], begin, end);
  };
  const Cut cut =
      lightest_cut(layers, model_chunks, [&](int model_chunk, int b, int e) {
        return use(model_chunk, b, e) > 1 ? kNever : sums.time(b, e);
      });
  if (cut.heaviest == kNever) {
    const double needed = lightest_cut(layers, model_chunks, use).heaviest;
    TESSERA_FAIL(
        "the {} layers do not fit into {} pieces within their memory limits: the best cut for memory needs {} times the limit of its fullest piece. Use more pipeline stages, smaller micro-batches, a schedule that stores fewer of them, or activation checkpointing.",
        layers,
        model_chunks,
        needed);
  }
  return cut.partition;
}

LayerPartition partition_by_map(
    const std::vector<int>& piece_of_layer,
    int model_chunks) {
  check_numbers(piece_of_layer.size(), model_chunks);
  LayerPartition partition{{0}};
  for (std::size_t layer = 0; layer < piece_of_layer.size(); ++layer) {
    const int model_chunk = piece_of_layer[layer];
    TESSERA_CHECK(
        model_chunk >= 0 && model_chunk < model_chunks,
        "piece_of_layer puts layer {} on piece {}; the pieces of the pipeline are 0 to {}.",
        layer,
        model_chunk,
        model_chunks - 1);
    const int last = partition.model_chunks();
    TESSERA_CHECK(
        model_chunk >= last,
        "piece_of_layer puts layer {} on piece {}, after a layer on piece {}; pieces are consecutive layers, so the numbers must never decrease.",
        layer,
        model_chunk,
        last);
    TESSERA_CHECK(
        model_chunk <= last + 1 && (layer > 0 || model_chunk == 0),
        "piece_of_layer leaves piece {} without layers: layer {} is on piece {}.",
        layer > 0 ? last + 1 : 0,
        layer,
        model_chunk);
    if (model_chunk > last) {
      partition.bounds.push_back(static_cast<int>(layer));
    }
  }
  TESSERA_CHECK(
      partition.model_chunks() == model_chunks - 1,
      "piece_of_layer leaves piece {} without layers: its last number is {}, of {} pieces.",
      partition.model_chunks() + 1,
      partition.model_chunks(),
      model_chunks);
  partition.bounds.push_back(static_cast<int>(piece_of_layer.size()));
  return partition;
}

} // namespace tessera::pipeline
