// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/shm_operation.h"

#include "tessera/runtime/comm/shm_bytes.h"
#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <utility>

namespace tessera::runtime {

namespace {

constexpr int64_t kLine = kShmLine;
// Bytes that are read from a peer and added at a time, so that they stay in the
// cache.
constexpr int64_t kCacheBytes = 512 << 10;
constexpr int64_t kSmallestChunk = 32 << 10;

ShmMessage& message_of(const ShmPort& port, int rank, uint64_t turn) {
  return port.region.rank(rank).messages[turn % kShmRingSlots];
}

} // namespace

std::vector<ByteSpan> even_spans(int64_t numel, int64_t itemsize, int ranks) {
  const int64_t total = numel * itemsize;
  const int64_t share = (total + ranks - 1) / ranks;
  const int64_t step = (share + kLine - 1) / kLine * kLine;
  std::vector<ByteSpan> spans;
  for (int r = 0; r < ranks; ++r) {
    spans.push_back(
        {std::min(r * step, total), std::min((r + 1) * step, total)});
  }
  return spans;
}

ShmOperation::ShmOperation(
    const ShmPort& port,
    CollectiveKind kind,
    at::ScalarType dtype,
    int64_t total_bytes,
    int64_t longest_bytes,
    int64_t rows,
    bool shows_results,
    int64_t header_bytes)
    : kind_(kind),
      dtype_(dtype),
      total_bytes_(total_bytes),
      shows_results_(shows_results) {
  chunk_bytes_ = port.region.slot_bytes() / rows / kLine * kLine - header_bytes;
  if (longest_bytes <= chunk_bytes_) {
    return;
  }
  if (port.peers.can_read()) {
    direct_ = true;
    chunk_bytes_ = longest_bytes;
  } else {
    chunks_ = static_cast<uint64_t>(
        (longest_bytes + chunk_bytes_ - 1) / chunk_bytes_);
  }
}

void ShmOperation::announce(
    const ShmPort& port,
    uint64_t turn,
    const std::byte* address) const {
  message_of(port, port.rank, turn) = {
      kind_,
      static_cast<int32_t>(dtype_),
      total_bytes_,
      direct_ ? reinterpret_cast<uint64_t>(address) : 0};
}

void ShmOperation::check_peers(const ShmPort& port, uint64_t turn) const {
  const ShmMessage& self_message = message_of(port, port.rank, turn);
  for (int r = 0; r < port.ranks; ++r) {
    const ShmMessage& peer_message = message_of(port, r, turn);
    check_same_collective(
        self_message, port.in_job(port.rank), peer_message, port.in_job(r));
  }
}

ByteSpan ShmOperation::part(const ByteSpan& full, uint64_t chunk) const {
  const int64_t begin = std::min(
      full.begin + static_cast<int64_t>(chunk) * chunk_bytes_, full.end);
  return {begin, std::min(begin + chunk_bytes_, full.end)};
}

ShmGather::ShmGather(
    const ShmPort& port,
    const at::Tensor& out,
    const at::Tensor& local,
    std::vector<ByteSpan> spans,
    bool shows_results)
    : ShmOperation(
          port,
          CollectiveKind::kGather,
          out.scalar_type(),
          static_cast<int64_t>(out.nbytes()),
          longest_bytes(spans),
          /*rows=*/1,
          shows_results),
      out_(out),
      local_(local),
      spans_(std::move(spans)) {}

void ShmGather::publish(const ShmPort& port, uint64_t turn, uint64_t chunk) {
  announce(port, turn, bytes_of(local_));
  if (!direct()) {
    const ByteSpan& full = spans_[static_cast<size_t>(port.rank)];
    const ByteSpan self_span = part(full, chunk);
    copy_bytes(
        port.region.payload(port.rank, turn),
        bytes_of(local_) + (self_span.begin - full.begin),
        self_span.bytes());
  }
}

void ShmGather::consume(const ShmPort& port, uint64_t turn, uint64_t chunk) {
  check_peers(port, turn);
  for (int i = 0; i < port.ranks; ++i) {
    // Each rank begins with itself, so that not all ranks read the same memory
    // at once.
    const int r = (port.rank + i) % port.ranks;
    const ByteSpan& full = spans_[static_cast<size_t>(r)];
    const ByteSpan span = part(full, chunk);
    std::byte* to = bytes_of(out_) + span.begin;
    if (r == port.rank) {
      copy_bytes(
          to, bytes_of(local_) + (span.begin - full.begin), span.bytes());
    } else if (direct()) {
      port.peers.read(r, message_of(port, r, turn).address, to, span.bytes());
    } else {
      copy_bytes(to, port.region.payload(r, turn), span.bytes());
    }
  }
}

ShmReduce::ShmReduce(
    const ShmPort& port,
    const at::Tensor& out,
    const at::Tensor& in,
    std::vector<ByteSpan> spans,
    ReduceKind kind)
    : ShmOperation(
          port,
          kind == ReduceKind::kSum ? CollectiveKind::kSum
                                   : CollectiveKind::kMax,
          in.scalar_type(),
          static_cast<int64_t>(in.nbytes()),
          longest_bytes(spans),
          /*rows=*/port.ranks),
      out_(out),
      in_(in),
      spans_(std::move(spans)),
      kind_(kind) {}

void ShmReduce::publish(const ShmPort& port, uint64_t turn, uint64_t chunk) {
  announce(port, turn, bytes_of(in_));
  if (direct()) {
    return;
  }
  // A row per peer; this rank's own stays empty.
  for (int r = 0; r < port.ranks; ++r) {
    const ByteSpan span = part(spans_[static_cast<size_t>(r)], chunk);
    if (r != port.rank) {
      copy_bytes(
          port.region.payload(port.rank, turn) + r * chunk_bytes_,
          bytes_of(in_) + span.begin,
          span.bytes());
    }
  }
}

void ShmReduce::consume(const ShmPort& port, uint64_t turn, uint64_t chunk) {
  check_peers(port, turn);
  const ByteSpan& full = spans_[static_cast<size_t>(port.rank)];
  const ByteSpan span = part(full, chunk);
  const auto ranks = static_cast<size_t>(port.ranks);
  const int64_t cached_bytes = std::min(
      std::max(kCacheBytes / port.ranks / kLine * kLine, kSmallestChunk),
      span.bytes());
  std::vector<std::vector<std::byte>> read(
      ranks, std::vector<std::byte>(direct() ? cached_bytes : 0));
  std::vector<const std::byte*> terms(ranks);
  for (int64_t at = span.begin; at < span.end; at += cached_bytes) {
    const int64_t bytes = std::min(cached_bytes, span.end - at);
    for (int r = 0; r < port.ranks; ++r) {
      const auto i = static_cast<size_t>(r);
      if (r == port.rank) {
        terms[i] = bytes_of(in_) + at;
      } else if (direct()) {
        const auto address = message_of(port, r, turn).address;
        port.peers.read(
            r, address + static_cast<uint64_t>(at), read[i].data(), bytes);
        terms[i] = read[i].data();
      } else {
        terms[i] = port.region.payload(r, turn) + port.rank * chunk_bytes_ +
                   (at - span.begin);
      }
    }
    reduce_terms(
        terms,
        bytes_of(out_) + (at - full.begin),
        bytes / static_cast<int64_t>(in_.itemsize()),
        in_.scalar_type(),
        kind_);
  }
}

bool ShmFullReduce::fits(const ShmPort& port, const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes()) <= port.region.slot_bytes();
}

ShmFullReduce::ShmFullReduce(
    const ShmPort& port,
    const at::Tensor& tensor,
    ReduceKind kind)
    : ShmOperation(
          port,
          kind == ReduceKind::kSum ? CollectiveKind::kSumFull
                                   : CollectiveKind::kMaxFull,
          tensor.scalar_type(),
          static_cast<int64_t>(tensor.nbytes()),
          static_cast<int64_t>(tensor.nbytes()),
          /*rows=*/1),
      tensor_(tensor),
      kind_(kind) {}

void ShmFullReduce::publish(
    const ShmPort& port,
    uint64_t turn,
    uint64_t /*piece*/) {
  announce(port, turn, nullptr);
  copy_bytes(
      port.region.payload(port.rank, turn),
      bytes_of(tensor_),
      static_cast<int64_t>(tensor_.nbytes()));
}

void ShmFullReduce::consume(
    const ShmPort& port,
    uint64_t turn,
    uint64_t /*piece*/) {
  check_peers(port, turn);
  std::vector<const std::byte*> terms;
  for (int r = 0; r < port.ranks; ++r) {
    terms.push_back(port.region.payload(r, turn));
  }
  reduce_terms(
      terms, bytes_of(tensor_), tensor_.numel(), tensor_.scalar_type(), kind_);
}

} // namespace tessera::runtime
