// A tile of data that a broadcast delivered to several cores, which only read it: held once. Each
// receiver's memory refers to it (Tile::lend) until something else is written there. Where the data
// still lie in a read-only argument of the run, the block only has their packed form.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "aligned.h"
#include "kernels/host/packed_operand.h"

namespace npu::emulator {

class BlockPool;

struct SharedBlock {
  AlignedBytes data;
  PackedOperand packed;
  BlockPool* pool = nullptr;
  std::atomic<int> users = 0;
};

// Blocks that are no longer referred to are used again, the last one first: it is still cached.
// References to a broadcast block end on whichever thread runs their column.
class BlockPool {
 public:
  SharedBlock* take(size_t bytes) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (free_.empty()) {
      all_.push_back(std::make_unique<SharedBlock>());
      all_.back()->pool = this;
      free_.push_back(all_.back().get());
    }
    SharedBlock* block = free_.back();
    free_.pop_back();
    if (block->data.size() < bytes) block->data.resize(bytes);
    block->packed.clear();
    return block;
  }
  void give_back(SharedBlock* block) {
    const std::lock_guard<std::mutex> guard(mutex_);
    free_.push_back(block);
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<SharedBlock>> all_;
  std::vector<SharedBlock*> free_;
};

// A reference to a block; the last one gives it back to its pool.
class BlockRef {
 public:
  BlockRef() = default;
  explicit BlockRef(SharedBlock* block) : block_(block) {
    if (block_) ++block_->users;
  }
  BlockRef(const BlockRef& other) : BlockRef(other.block_) {}
  BlockRef(BlockRef&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~BlockRef() {
    if (block_ && --block_->users == 0) block_->pool->give_back(block_);
  }
  SharedBlock* operator->() const { return block_; }
  explicit operator bool() const { return block_ != nullptr; }

 private:
  SharedBlock* block_ = nullptr;
};

}  // namespace npu::emulator
