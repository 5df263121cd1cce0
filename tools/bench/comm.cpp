// SPDX-License-Identifier: Apache-2.0
#include "bench/comm.h"

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/ring_channels.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/streams/stream_time.h"

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

namespace tessera::tools {

namespace {

constexpr const char* kTransportVariable = "TESSERA_TRANSPORT";

/// A value of the environment until the end of the scope.
class VariableScope {
 public:
  VariableScope(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) {
      before_ = before;
    }
    ::setenv(name, value.c_str(), /*overwrite=*/1);
  }
  ~VariableScope() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  VariableScope(const VariableScope&) = delete;
  VariableScope& operator=(const VariableScope&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

/// Elements that are made or compared at a time: the integers for a whole
/// tensor would take several times its memory.
constexpr int64_t kCheckedChunkNumel = int64_t{1} << 20;

/// What rank `rank` sends at these indices: small whole numbers, whose sums are
/// exact in 16 bits for up to 85 ranks.
/// @param rank a number, or a tensor with one for each index.
template <typename Rank>
at::Tensor sent_by(const Rank& rank, const at::Tensor& indices) {
  return (indices + rank).remainder_(4);
}

at::Tensor sum_of_all(int ranks, const at::Tensor& indices) {
  at::Tensor sum = sent_by(0, indices);
  for (int rank = 1; rank < ranks; ++rank) {
    sum += sent_by(rank, indices);
  }
  return sum;
}

/// The collectives over one transport.
class CommBench {
 public:
  CommBench(
      World& world,
      const CommOptions& options,
      const std::string& transport,
      Communicator& control)
      : options_(options), control_(control), device_(world.device()) {
    const bool on_cpu = transport == "shm" || transport == "gloo";
    TESSERA_CHECK(
        on_cpu || transport.empty() ||
            (transport == "cuda" && !world.device().is_cpu()),
        "tessera bench comm: --transport {}: {}",
        transport,
        transport == "cuda" ? "the job has no CUDA devices"
                            : "there are shm, gloo and cuda");
    std::optional<VariableScope> chosen;
    if (on_cpu) {
      device_ = at::kCPU;
      chosen.emplace(kTransportVariable, transport);
    }
    ranks_ = world.new_communicator("bench", device_);
    std::vector<int> ring(static_cast<size_t>(world.size()));
    std::iota(ring.begin(), ring.end(), 0);
    if (world.size() > 1) {
      channels_ = std::make_unique<runtime::RingChannels>(
          world, "bench ring", ring, device_);
    }
  }

  CommResult run(CommKind kind, c10::ScalarType dtype, int64_t bytes) {
    const int size = ranks_->size();
    const auto width = static_cast<int64_t>(c10::elementSize(dtype));
    const int64_t part = std::max<int64_t>(bytes / width / size, 1);
    kind_ = kind;
    tensor_options_ = at::device(device_).dtype(dtype);
    numel_ = part * size;
    part_ = part;
    CommResult result{kind, ranks_->transport(), dtype, numel_ * width, 0, 0};
    prepare();
    for (int i = 0; i < options_.warmup; ++i) {
      call();
    }
    control_.barrier();
    const auto begin = runtime::StreamTime::now(device_);
    for (int i = 0; i < options_.iterations; ++i) {
      call();
    }
    const double seconds =
        runtime::StreamTime::now(device_).seconds_since(begin) /
        options_.iterations;
    prepare(); // calls have overwritten it
    call();
    const at::Tensor sums =
        at::tensor({seconds, static_cast<double>(wrong())}, at::kDouble);
    control_.all_reduce_sum(sums, "results of the measurement").wait();
    result.seconds = sums[0].item<double>() / size;
    result.wrong = static_cast<int64_t>(sums[1].item<double>());
    return result;
  }

 private:
  int rank() const {
    return ranks_->rank();
  }
  int before() const {
    return (rank() + ranks_->size() - 1) % ranks_->size();
  }
  int after() const {
    return (rank() + 1) % ranks_->size();
  }

  void prepare() {
    input_ = at::empty(
        {kind_ == CommKind::kAllGather ? part_ : numel_}, tensor_options_);
    for_each_chunk(input_, [&](at::Tensor chunk, const at::Tensor& indices) {
      chunk.copy_(sent_by(rank(), indices));
    });
    output_ = at::zeros(
        {kind_ == CommKind::kReduceScatter ? part_ : numel_}, tensor_options_);
  }

  /// Calls function(piece, indices) with views that together are the tensor.
  template <typename Function>
  static void for_each_chunk(const at::Tensor& tensor, Function function) {
    for (int64_t begin = 0; begin < tensor.numel();
         begin += kCheckedChunkNumel) {
      const int64_t end = std::min(begin + kCheckedChunkNumel, tensor.numel());
      function(
          tensor.narrow(0, begin, end - begin),
          at::arange(begin, end, at::device(tensor.device()).dtype(at::kLong)));
    }
  }

  void call() {
    const std::string label = name_of(kind_);
    switch (kind_) {
      case CommKind::kAllGather:
        ranks_->all_gather(output_, input_, label).wait();
        break;
      case CommKind::kReduceScatter:
        ranks_->reduce_scatter_sum(output_, input_, label).wait();
        break;
      case CommKind::kAllReduce:
        ranks_->all_reduce_sum(input_, label).wait();
        break;
      case CommKind::kBroadcast:
        ranks_->broadcast(input_, 0, label).wait();
        break;
      case CommKind::kAllToAll:
        ranks_->all_to_all(output_, input_, label).wait();
        break;
      case CommKind::kSendReceive:
        if (channels_ == nullptr) {
          output_.copy_(input_);
          break;
        }
        auto sent = channels_->send(input_, after(), label);
        auto received = channels_->receive(output_, before(), label);
        received.wait();
        sent.wait();
        break;
    }
  }

  /// What this rank's result is at these indices.
  at::Tensor expected(const at::Tensor& indices) const {
    const int64_t begin = rank() * part_; // of this rank's part
    switch (kind_) {
      case CommKind::kAllGather:
        return sent_by(indices.div(part_, "floor"), indices.remainder(part_));
      case CommKind::kReduceScatter:
        return sum_of_all(ranks_->size(), indices + begin);
      case CommKind::kAllReduce:
        return sum_of_all(ranks_->size(), indices);
      case CommKind::kBroadcast:
        return sent_by(0, indices);
      case CommKind::kAllToAll:
        return sent_by(
            indices.div(part_, "floor"), indices.remainder(part_) + begin);
      case CommKind::kSendReceive:
        break;
    }
    return sent_by(before(), indices);
  }

  int64_t wrong() const {
    const bool in_place =
        kind_ == CommKind::kAllReduce || kind_ == CommKind::kBroadcast;
    int64_t wrong = 0;
    for_each_chunk(
        in_place ? input_ : output_,
        [&](const at::Tensor& chunk, const at::Tensor& indices) {
          wrong += chunk.to(at::kDouble)
                       .ne(expected(indices).to(at::kDouble))
                       .sum()
                       .item<int64_t>();
        });
    return wrong;
  }

  const CommOptions& options_;
  Communicator& control_;
  c10::Device device_;
  std::unique_ptr<Communicator> ranks_;
  std::unique_ptr<runtime::RingChannels> channels_; ///< null with one rank
  // Of the measurement that runs:
  CommKind kind_ = CommKind::kAllGather;
  at::TensorOptions tensor_options_;
  int64_t numel_ = 0;
  int64_t part_ = 0; ///< of one rank
  at::Tensor input_;
  at::Tensor output_;
};

std::string dtype_text(c10::ScalarType dtype) {
  return c10::getDtypeNames(dtype).first;
}

} // namespace

const char* name_of(CommKind kind) {
  constexpr std::array<const char*, 6> kNames{
      "all_gather",
      "reduce_scatter",
      "all_reduce",
      "broadcast",
      "all_to_all",
      "send_receive"};
  return kNames.at(static_cast<size_t>(kind));
}

const std::vector<CommKind>& comm_kinds() {
  static const std::vector<CommKind> kinds{
      CommKind::kAllGather,
      CommKind::kReduceScatter,
      CommKind::kAllReduce,
      CommKind::kBroadcast,
      CommKind::kAllToAll,
      CommKind::kSendReceive};
  return kinds;
}

double bus_factor(CommKind kind, int ranks) {
  const double n = ranks;
  switch (kind) {
    case CommKind::kAllReduce:
      return 2 * (n - 1) / n;
    case CommKind::kAllGather:
    case CommKind::kReduceScatter:
    case CommKind::kAllToAll:
      return (n - 1) / n;
    case CommKind::kBroadcast:
    case CommKind::kSendReceive:
      break;
  }
  return 1;
}

CommFindings measure_comm(
    World& world,
    const CommOptions& options,
    const std::function<void(const CommResult&)>& report) {
  CommFindings findings;
  findings.ranks = world.size();
  findings.nodes = (world.size() + world.local_size() - 1) / world.local_size();
  const auto control = world.new_communicator("bench control");
  std::vector<std::string> transports = options.transports;
  if (transports.empty()) {
    transports.emplace_back(); // the engine's
  }
  for (const std::string& transport : transports) {
    CommBench bench(world, options, transport, *control);
    for (const CommKind kind : options.kinds) {
      for (const c10::ScalarType dtype : options.dtypes) {
        for (int64_t bytes = options.min_bytes; bytes <= options.max_bytes;
             bytes *= options.factor) {
          findings.results.push_back(bench.run(kind, dtype, bytes));
          if (world.rank() == 0 && report) {
            report(findings.results.back());
          }
        }
      }
    }
    control->barrier(); // before the communicators end
  }
  return findings;
}

nlohmann::ordered_json to_json(const CommFindings& findings) {
  auto results = nlohmann::ordered_json::array();
  for (const CommResult& result : findings.results) {
    results.push_back(
        {{"collective", name_of(result.kind)},
         {"transport", result.transport},
         {"dtype", dtype_text(result.dtype)},
         {"bytes", result.bytes},
         {"seconds", result.seconds},
         {"algbw", result.algorithm_bandwidth()},
         {"busbw", result.bus_bandwidth(findings.ranks)},
         {"wrong", result.wrong}});
  }
  return {
      {"comm",
       {{"ranks", findings.ranks},
        {"nodes", findings.nodes},
        {"results", std::move(results)}}}};
}

std::string comm_header() {
  char text[128];
  std::snprintf(
      text,
      sizeof(text),
      "%-15s %-6s %-9s %11s %10s %8s %8s %6s\n",
      "collective",
      "over",
      "dtype",
      "bytes",
      "us",
      "algbw",
      "busbw",
      "wrong");
  return text;
}

std::string comm_row(const CommResult& result, int ranks) {
  char text[160];
  std::snprintf(
      text,
      sizeof(text),
      "%-15s %-6s %-9s %11lld %10.1f %8.2f %8.2f %6lld\n",
      name_of(result.kind),
      result.transport.c_str(),
      dtype_text(result.dtype).c_str(),
      static_cast<long long>(result.bytes),
      1e6 * result.seconds,
      1e-9 * result.algorithm_bandwidth(),
      1e-9 * result.bus_bandwidth(ranks),
      static_cast<long long>(result.wrong));
  return text;
}

} // namespace tessera::tools
