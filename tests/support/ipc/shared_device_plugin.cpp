// SPDX-License-Identifier: Apache-2.0
// The plug-in that lets ranks share a CUDA device, which load_cuda_backend()
// opens where it lies beside that of CUDA: collectives by stream memory
// operations and CUDA's IPC.

#include "support/ipc/ipc_backend.h"
#include "support/ipc/stream_driver.h"
#include "tessera/runtime/comm/cuda_transport.h"
#include "tessera/runtime/comm/shm_meeting.h"
#include "tessera/runtime/core/error.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <mutex>
#include <type_traits>

namespace tessera::runtime::ipc {

namespace {

void check(cudaError_t error, const char* function) {
  if (error != cudaSuccess) {
    (void)cudaGetLastError(); // or LibTorch's next check would report it
    TESSERA_FAIL("{}: {}", function, cudaGetErrorString(error));
  }
}

void check(CUresult result, const char* function) {
  TESSERA_CHECK(
      result == CUDA_SUCCESS,
      "{}: error {} of the CUDA driver",
      function,
      static_cast<int>(result));
}

/// A function of the driver, which is not linked to.
template <typename Function>
Function* driver_function(const char* name) {
  constexpr unsigned kVersion = 12000; // the second form of these functions
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(
      cudaGetDriverEntryPointByVersion(
          name, &address, kVersion, cudaEnableDefault, &found),
      name);
  TESSERA_CHECK(
      found == cudaDriverEntryPointSuccess && address != nullptr,
      "the CUDA driver has no {}",
      name);
  return reinterpret_cast<Function*>(address);
}

class CudaStreamDriver : public StreamDriver {
 public:
  explicit CudaStreamDriver(int device_index)
      : device_(at::kCUDA, static_cast<c10::DeviceIndex>(device_index)),
        write_(driver_function<std::remove_pointer_t<WriteValue>>(
            "cuStreamWriteValue32")),
        wait_(driver_function<std::remove_pointer_t<WaitValue>>(
            "cuStreamWaitValue32")) {}

  c10::Device device() const override {
    return device_;
  }
  Stream current_stream() override {
    return c10::cuda::getCurrentCUDAStream(device_.index()).stream();
  }

  void copy(Stream stream, std::byte* to, const std::byte* from, int64_t bytes)
      override {
    if (bytes == 0) {
      return;
    }
    const c10::cuda::CUDAGuard guard(device_);
    check(
        cudaMemcpyAsync(
            to,
            from,
            static_cast<size_t>(bytes),
            cudaMemcpyDeviceToDevice,
            cuda(stream)),
        "cudaMemcpyAsync");
  }

  void reduce(
      Stream stream,
      std::span<const std::byte* const> terms,
      std::byte* out,
      int64_t numel,
      c10::ScalarType dtype,
      ReduceKind kind) override {
    if (numel == 0) {
      return;
    }
    const c10::cuda::CUDAStreamGuard guard(
        c10::cuda::getStreamFromExternal(cuda(stream), device_.index()));
    reduce_terms(terms, out, numel, dtype, kind, device_);
  }

  void write_flag(Stream stream, StreamFlag& flag, uint32_t value) override {
    const c10::cuda::CUDAGuard guard(device_);
    check(
        write_(
            cuda(stream),
            address_of(flag),
            value,
            CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue32");
  }

  void wait_flag(Stream stream, const StreamFlag& flag, uint32_t value)
      override {
    const c10::cuda::CUDAGuard guard(device_);
    check(
        wait_(cuda(stream), address_of(flag), value, CU_STREAM_WAIT_VALUE_GEQ),
        "cuStreamWaitValue32");
  }

  // Not from LibTorch's allocator: a handle opens a whole allocation.
  std::byte* allocate(int64_t bytes) override {
    const c10::cuda::CUDAGuard guard(device_);
    void* array = nullptr;
    check(cudaMalloc(&array, static_cast<size_t>(bytes)), "cudaMalloc");
    return static_cast<std::byte*>(array);
  }

  void free(std::byte* array) noexcept override {
    const c10::cuda::CUDAGuard guard(device_);
    (void)cudaFree(array);
  }

  std::string export_array(std::byte* array) override {
    const c10::cuda::CUDAGuard guard(device_);
    cudaIpcMemHandle_t handle{};
    check(cudaIpcGetMemHandle(&handle, array), "cudaIpcGetMemHandle");
    return {reinterpret_cast<const char*>(&handle), sizeof(handle)};
  }

  std::byte* open_array(const std::string& text) override {
    const c10::cuda::CUDAGuard guard(device_);
    cudaIpcMemHandle_t handle{};
    TESSERA_CHECK(
        text.size() == sizeof(handle),
        "an IPC handle has {} bytes, not {}",
        sizeof(handle),
        text.size());
    std::memcpy(&handle, text.data(), sizeof(handle));
    void* array = nullptr;
    check(
        cudaIpcOpenMemHandle(&array, handle, cudaIpcMemLazyEnablePeerAccess),
        "cudaIpcOpenMemHandle");
    return static_cast<std::byte*>(array);
  }

  void close_array(std::byte* array) noexcept override {
    const c10::cuda::CUDAGuard guard(device_);
    (void)cudaIpcCloseMemHandle(array);
  }

  void register_flags(void* begin, int64_t bytes) override {
    const c10::cuda::CUDAGuard guard(device_);
    check(
        cudaHostRegister(
            begin,
            static_cast<size_t>(bytes),
            cudaHostRegisterPortable | cudaHostRegisterMapped),
        "cudaHostRegister");
    void* on_device = nullptr;
    check(
        cudaHostGetDevicePointer(&on_device, begin, 0),
        "cudaHostGetDevicePointer");
    const std::lock_guard lock(mutex_);
    flags_[static_cast<const std::byte*>(begin)] =
        static_cast<std::byte*>(on_device);
  }

  void unregister_flags(void* begin) noexcept override {
    const c10::cuda::CUDAGuard guard(device_);
    (void)cudaHostUnregister(begin);
    const std::lock_guard lock(mutex_);
    flags_.erase(static_cast<const std::byte*>(begin));
  }

 private:
  using WriteValue = decltype(&cuStreamWriteValue32);
  using WaitValue = decltype(&cuStreamWaitValue32);

  static cudaStream_t cuda(Stream stream) {
    return static_cast<cudaStream_t>(stream);
  }

  /// The flag's address on the device. Its pages are the last that begin at or
  /// before it.
  CUdeviceptr address_of(const StreamFlag& flag) {
    const auto* address = reinterpret_cast<const std::byte*>(&flag);
    const std::lock_guard lock(mutex_);
    auto pages = flags_.upper_bound(address);
    TESSERA_CHECK(pages != flags_.begin(), "a flag is not registered");
    --pages;
    return reinterpret_cast<CUdeviceptr>(
        pages->second + (address - pages->first));
  }

  c10::Device device_;
  WriteValue write_;
  WaitValue wait_;
  std::mutex mutex_;
  std::map<const std::byte*, std::byte*> flags_; ///< by address on the host
};

const bool kRegistered = [] {
  register_shared_device_backend(
      [](const c10::intrusive_ptr<c10d::Store>& store,
         int rank,
         int size,
         int device_index,
         std::chrono::milliseconds timeout)
          -> c10::intrusive_ptr<c10d::Backend> {
        std::unique_ptr<StreamDriver> driver;
        all_succeed(*store, "driver", rank, size, [&] {
          driver = std::make_unique<CudaStreamDriver>(device_index);
        });
        return c10::make_intrusive<IpcBackend>(
            store, rank, size, IpcOptions{timeout}, std::move(driver));
      });
  return true;
}();

} // namespace

} // namespace tessera::runtime::ipc
