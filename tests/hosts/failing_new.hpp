// Allocations of C++ that fail, one at a time, in the calling thread.
#include "kiln.hpp"

#include <cstdlib>

static thread_local long allocations, fail_at = -1;

static void *allocate(std::size_t bytes, std::size_t alignment)
{
    if (allocations++ == fail_at)
        throw std::bad_alloc();
    void *memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory == nullptr)
        throw std::bad_alloc();
    return memory;
}

void *operator new(std::size_t bytes) { return allocate(bytes, 16); }
void *operator new(std::size_t bytes, std::align_val_t alignment)
{
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void *memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

// Runs f() with each of its allocations failing once; their number.
template <class F>
static long each_failing(F f)
{
    for (long k = 0;; k++) {
        allocations = 0;
        fail_at = k;
        try {
            f();
            fail_at = -1;
            return k;
        } catch (const std::bad_alloc &) {
            fail_at = -1;
        } catch (const kiln::Error &error) { // a function of the host had none
            fail_at = -1;
            if (error.code() != KILN_ERROR_CALLBACK)
                throw;
        }
    }
}
