// The projects of E2B's JavaScript suite that run in Node, for tests/conformance/suite.
import { defineConfig } from 'vitest/config'

const project = (name, include, exclude, testTimeout) => ({
  test: { name, include, exclude, testTimeout, setupFiles: ['tests/globalFetchFallback.setup.ts'] },
})

export default defineConfig({
  test: {
    maxWorkers: Number(process.env.JOBS ?? 4),
    projects: [
      project('unit', ['tests/**/*.test.ts'], ['tests/runtimes/**', 'tests/template/**'], 60_000),
      project('template', ['tests/template/**/*.test.ts'], [], 180_000),
    ],
  },
})
