// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/context_parallel/ring_attention.h"

#include "tessera/runtime/core/error.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kRingSetup = "setup";
constexpr const char* kRingAttention = "ring attention";

struct RingSetup : torch::CustomClassHolder {
  RingSetup(runtime::RingChannels& ring, const RingAttentionOptions& options)
      : ring(ring), options(options) {}
  runtime::RingChannels& ring;
  RingAttentionOptions options;
};

/// Sends tensors to the next rank while receiving those of the previous rank.
class Shift {
 public:
  Shift(runtime::RingChannels& ring, const std::vector<at::Tensor>& tensors) {
    const int next = (ring.index() + 1) % ring.size();
    const int before = (ring.index() + ring.size() - 1) % ring.size();
    for (const at::Tensor& tensor : tensors) {
      pending_.push_back(ring.send(tensor, next, kRingAttention));
    }
    for (const at::Tensor& tensor : tensors) {
      arriving_.push_back(at::empty_like(tensor));
      pending_.push_back(
          ring.receive(arriving_.back(), before, kRingAttention));
    }
  }

  std::vector<at::Tensor> wait() {
    for (runtime::LaneCollective& one : pending_) {
      one.wait();
    }
    return std::move(arriving_);
  }

 private:
  std::vector<at::Tensor> arriving_;
  std::vector<runtime::LaneCollective> pending_;
};

/// The part of a block of scores between two runs of tokens.
struct Tile {
  ContextSegment query;
  ContextSegment key;
  bool masked = false; ///< some of it is hidden
  /// If the attention has a pattern: bool [1 or B, 1, 1 or queries, keys].
  at::Tensor visible;
};

/// False where the answer is on a device: waiting for it costs more.
bool hides_all(const runtime::AttentionPattern& pattern) {
  return pattern.first.is_cpu() && !pattern.global_keys.defined() &&
         !pattern.first.lt(pattern.end).any().item<bool>();
}

/// Returns the tiles between this rank's queries and the keys of rank `from`.
std::vector<Tile> tiles(
    const RingSetup& setup,
    int from,
    int64_t local_tokens) {
  const int ranks = setup.ring.size();
  const auto segments = [&](int rank) {
    return context_segments(
        setup.options.layout, local_tokens * ranks, rank, ranks);
  };
  std::vector<Tile> found;
  for (const ContextSegment& query : segments(setup.ring.index())) {
    for (const ContextSegment& key : segments(from)) {
      const runtime::AttentionPattern& pattern = setup.options.pattern;
      const bool causal =
          pattern.defined() ? pattern.is_causal : setup.options.causal;
      if (causal && key.first >= query.first + query.length) {
        continue;
      }
      Tile tile{query, key, causal && key.first + key.length > query.first + 1};
      if (pattern.defined()) {
        const runtime::AttentionPattern part =
            pattern.narrowed(query.first, query.length, key.first, key.length);
        if (hides_all(part)) {
          continue;
        }
        tile.masked = true;
        tile.visible = part.visible();
      }
      found.push_back(tile);
    }
  }
  return found;
}

/// Concatenates heads that share a kv head: [batch, heads, n, f] to [batch, kv
/// heads, heads / kv heads * n, f].
at::Tensor joined(const at::Tensor& x, int64_t kv_heads) {
  return x.unflatten(1, {kv_heads, -1}).flatten(2, 3);
}

at::Tensor of(const at::Tensor& tokens, const ContextSegment& segment) {
  return tokens.narrow(2, segment.offset, segment.length);
}

/// scale q k^T, with -infinity where the mask hides it.
at::Tensor scores_of(
    const at::Tensor& query,
    const at::Tensor& key,
    const Tile& tile,
    double scale) {
  at::Tensor scores = query.matmul(key.transpose(2, 3)).mul_(scale);
  if (tile.visible.defined()) {
    const at::Tensor hidden =
        ~tile.visible.expand({-1, -1, tile.query.length, tile.key.length});
    scores.unflatten(2, {-1, tile.query.length})
        .masked_fill_(
            hidden.unsqueeze(1), -std::numeric_limits<double>::infinity());
  } else if (tile.masked) {
    const auto positions = [&](const ContextSegment& segment) {
      return at::arange(
          segment.first,
          segment.first + segment.length,
          scores.options().dtype(at::kLong));
    };
    const at::Tensor hidden =
        positions(tile.key).unsqueeze(0) > positions(tile.query).unsqueeze(1);
    scores.unflatten(2, {-1, tile.query.length})
        .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  }
  return scores;
}

/// exp(a - b); 0 where a is -infinity, even if b is too.
at::Tensor weight_of(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).exp_().masked_fill_(a.isneginf(), 0);
}

double scale_of(const RingSetup& setup, const at::Tensor& query) {
  return setup.options.scale.value_or(
      1 / std::sqrt(static_cast<double>(query.size(3))));
}

/// Calls `work(rank, key, value)` for the keys and values of every rank,
/// starting with its own, while the next ones arrive.
template <typename Work>
void for_all_blocks(
    runtime::RingChannels& ring,
    const at::Tensor& key,
    const at::Tensor& value,
    const Work& work) {
  std::vector<at::Tensor> block{key.contiguous(), value.contiguous()};
  for (int step = 0; step < ring.size(); ++step) {
    std::optional<Shift> shift;
    if (step + 1 < ring.size()) {
      shift.emplace(ring, block);
    }
    work((ring.index() + ring.size() - step) % ring.size(), block[0], block[1]);
    if (shift) {
      block = shift->wait();
    }
  }
}

struct RingFunction : torch::autograd::Function<RingFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& query,
      const at::Tensor& key,
      const at::Tensor& value,
      const c10::intrusive_ptr<RingSetup>& setup) {
    const auto dtype = at::toOpMathType(query.scalar_type());
    const int64_t kv_heads = key.size(1);
    const double scale = scale_of(*setup, query);
    const at::Tensor wide = query.to(dtype);
    const at::Tensor result =
        at::zeros_like(wide, at::MemoryFormat::Contiguous);
    const at::Tensor lse = at::full(
        {query.size(0), query.size(1), query.size(2), 1},
        -std::numeric_limits<double>::infinity(),
        wide.options());
    for_all_blocks(
        setup->ring,
        key,
        value,
        [&](int from, const at::Tensor& keys, const at::Tensor& values) {
          const at::Tensor wide_keys = keys.to(dtype);
          const at::Tensor wide_values = values.to(dtype);
          for (const Tile& tile : tiles(*setup, from, query.size(2))) {
            const at::Tensor scores = scores_of(
                joined(of(wide, tile.query), kv_heads),
                of(wide_keys, tile.key),
                tile,
                scale);
            const at::Tensor tile_lse = at::logsumexp(scores, -1, true);
            const at::Tensor summand =
                weight_of(scores, tile_lse).matmul(of(wide_values, tile.key));
            const auto apart = [&](const at::Tensor& x) {
              return x.unflatten(2, {-1, tile.query.length}).flatten(1, 2);
            };
            const at::Tensor local_lse = of(lse, tile.query);
            const at::Tensor all = at::logaddexp(local_lse, apart(tile_lse));
            of(result, tile.query)
                .mul_(weight_of(local_lse, all))
                .addcmul_(apart(summand), weight_of(apart(tile_lse), all));
            local_lse.copy_(all);
          }
        });
    const at::Tensor rounded = result.to(query.scalar_type());
    context->save_for_backward({query, key, value, rounded, lse});
    context->saved_data[kRingSetup] = c10::IValue::make_capsule(setup);
    return rounded;
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    TESSERA_CHECK(
        !c10::GradMode::is_enabled(),
        "ring_attention cannot be differentiated twice: call backward without create_graph.");
    const auto saved = context->get_saved_variables();
    const auto setup = c10::static_intrusive_pointer_cast<RingSetup>(
        context->saved_data[kRingSetup].toCapsule());
    const auto dtype = at::toOpMathType(saved[0].scalar_type());
    const at::Tensor query = saved[0].to(dtype);
    const at::Tensor& lse = saved[4];
    const at::Tensor gradient = gradients[0].to(dtype);
    const at::Tensor delta =
        (gradient * saved[3].to(dtype)).sum(-1, /*keepdim=*/true);
    const int64_t kv_heads = saved[1].size(1);
    const double scale = scale_of(*setup, query);

    const at::Tensor query_gradient =
        at::zeros_like(query, at::MemoryFormat::Contiguous);
    // Gradients of the block that is here, summed over the ranks that have had
    // it.
    const auto zeros = [&](const at::Tensor& like) {
      return at::zeros(like.sizes(), query.options());
    };
    std::vector<at::Tensor> home{zeros(saved[1]), zeros(saved[2])};
    for_all_blocks(
        setup->ring,
        saved[1],
        saved[2],
        [&](int from, const at::Tensor& keys, const at::Tensor& values) {
          const at::Tensor wide_keys = keys.to(dtype);
          const at::Tensor wide_values = values.to(dtype);
          for (const Tile& tile : tiles(*setup, from, query.size(2))) {
            const auto rows = [&](const at::Tensor& x) {
              return joined(of(x, tile.query), kv_heads);
            };
            const at::Tensor tile_query = rows(query);
            const at::Tensor tile_keys = of(wide_keys, tile.key);
            const at::Tensor tile_gradient = rows(gradient);
            const at::Tensor softmax = weight_of(
                scores_of(tile_query, tile_keys, tile, scale), rows(lse));
            const at::Tensor scores_gradient =
                tile_gradient.matmul(of(wide_values, tile.key).transpose(2, 3))
                    .sub_(rows(delta))
                    .mul_(softmax)
                    .mul_(scale);
            of(query_gradient, tile.query)
                .add_(scores_gradient.matmul(tile_keys)
                          .unflatten(2, {-1, tile.query.length})
                          .flatten(1, 2));
            of(home[0], tile.key)
                .add_(scores_gradient.transpose(2, 3).matmul(tile_query));
            of(home[1], tile.key)
                .add_(softmax.transpose(2, 3).matmul(tile_gradient));
          }
          // To the rank that has the block next, finally to its owner.
          if (setup->ring.size() > 1) {
            home = Shift(setup->ring, home).wait();
          }
        });
    return {
        query_gradient.to(saved[0].scalar_type()),
        home[0].to(saved[1].scalar_type()),
        home[1].to(saved[2].scalar_type()),
        at::Tensor()};
  }
};

} // namespace

at::Tensor ring_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    runtime::RingChannels& ring,
    const RingAttentionOptions& options) {
  TESSERA_CHECK(
      query.dim() == 4 && key.dim() == 4 && key.sizes() == value.sizes() &&
          key.size(0) == query.size(0) && key.size(2) == query.size(2) &&
          key.size(3) == query.size(3) && key.size(1) > 0 &&
          query.size(1) % key.size(1) == 0 &&
          key.scalar_type() == query.scalar_type() &&
          value.scalar_type() == query.scalar_type(),
      "ring_attention: a query of sizes {} {}, a key of {} {} and a value of {} {}; expected [batch, heads, tokens, features] of one dtype, key and value of the same sizes, with a number of heads that divides the query's.",
      query.sizes(),
      query.scalar_type(),
      key.sizes(),
      key.scalar_type(),
      value.sizes(),
      value.scalar_type());
  const runtime::AttentionPattern& pattern = options.pattern;
  TESSERA_CHECK(
      !pattern.defined() || (pattern.queries == pattern.keys &&
                             pattern.keys == query.size(2) * ring.size()),
      "ring_attention: a pattern of {} queries and {} keys for {} tokens on each of {} ranks; it must be of whole sequences",
      pattern.queries,
      pattern.keys,
      query.size(2),
      ring.size());
  return RingFunction::apply(
      query, key, value, c10::make_intrusive<RingSetup>(ring, options));
}

} // namespace tessera::sharding
