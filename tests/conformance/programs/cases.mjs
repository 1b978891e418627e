// What a program sees of Corral through E2B's JavaScript SDK.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const require = createRequire(`${process.argv[2]}/package.json`)
const { Sandbox, CommandExitError, FileNotFoundError, AuthenticationError } = await import(
  pathToFileURL(require.resolve('e2b')).href
)

const box = await Sandbox.create({ timeoutMs: 3_600_000, metadata: { sdk: 'js' }, envs: { FROM_CREATE: '1' } })

const cases = {
  async case_info() {
    const info = await box.getInfo()
    assert.equal(info.sandboxId, box.sandboxId)
    assert.deepEqual(info.metadata, { sdk: 'js' })
    assert.equal(info.state, 'running')
  },
  async case_list() {
    const found = await Sandbox.list({ query: { metadata: { sdk: 'js' } } }).nextItems()
    assert.deepEqual(found.map((item) => item.sandboxId), [box.sandboxId])
  },
  async case_run() {
    const done = await box.commands.run('echo out; echo err >&2; echo $FROM_CREATE')
    assert.deepEqual([done.stdout, done.stderr, done.exitCode], ['out\n1\n', 'err\n', 0])
  },
  async case_exit_code() {
    await assert.rejects(box.commands.run('exit 3'), (error) => error instanceof CommandExitError && error.exitCode === 3)
  },
  async case_background_and_kill() {
    const running = await box.commands.run('sleep 300', { background: true })
    assert.ok((await box.commands.list()).some((item) => item.pid === running.pid))
    assert.equal(await running.kill(), true)
    await assert.rejects(running.wait(), CommandExitError)
    assert.equal(await box.commands.kill(running.pid), false)
  },
  async case_stdin() {
    const running = await box.commands.run('cat', { background: true, stdin: true })
    await box.commands.sendStdin(running.pid, 'hello')
    await box.commands.closeStdin(running.pid)
    assert.equal((await running.wait()).stdout, 'hello')
  },
  async case_terminal() {
    let seen = ''
    const terminal = await box.pty.create({ cols: 80, rows: 24, onData: (data) => { seen += new TextDecoder().decode(data) } })
    await box.pty.resize(terminal.pid, { cols: 101, rows: 30 })
    await box.pty.sendInput(terminal.pid, new TextEncoder().encode('tput cols; exit\n'))
    await terminal.wait()
    assert.ok(seen.includes('101'))
  },
  async case_files() {
    await box.files.write('dir/file', 'grüße')
    assert.equal(await box.files.read('dir/file'), 'grüße')
    await assert.rejects(box.files.read('/none'), FileNotFoundError)
    assert.equal(await box.files.makeDir('dir'), false)
    assert.deepEqual((await box.files.list('dir')).map((item) => item.path), ['/home/user/dir/file'])
    await box.files.rename('dir/file', 'dir/other')
    assert.equal(await box.files.exists('dir/file'), false)
    await box.files.remove('dir')
  },
  async case_watch() {
    await box.files.makeDir('watched')
    let tell
    const told = new Promise((resolve) => { tell = resolve })
    const watch = await box.files.watchDir('watched', (event) => tell(event.name))
    await box.files.write('watched/file', '1')
    assert.equal(await told, 'file')
    await watch.stop()
  },
  async case_signed_address() {
    await box.files.write('signed', '1')
    assert.equal(await (await fetch(await box.downloadUrl('signed'))).text(), '1')
  },
  async case_pause_and_connect() {
    await box.pause()
    assert.equal(await box.isRunning(), false)
    const again = await Sandbox.connect(box.sandboxId)
    assert.equal(await again.isRunning(), true)
    assert.equal((await again.commands.run('echo back')).stdout, 'back\n')
  },
  async case_network_options() {
    const transform = { headers: { 'X-Key': 'canary-0123456789' } }
    const egressProxy = { address: '45.45.45.2:1', username: 'me', password: 'canary-0123456789' }
    const network = { rules: { 'api.example.com': [{ transform }] }, egressProxy }
    const mine = await Sandbox.create({ network })
    const info = await mine.getInfo()
    assert.deepEqual(Object.keys(info.network.rules), ['api.example.com'])
    assert.deepEqual(info.network.egressProxy, { address: '45.45.45.2:1', username: 'me' })
    assert.ok(!JSON.stringify(info).includes('canary'))
    await mine.kill()
    await assert.rejects(Sandbox.create({ network: { egressProxy: { address: '10.0.0.1:1080' } } }), /400/)
  },
  async case_wrong_key() {
    await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), AuthenticationError)
  },
  async case_zz_kill() {
    assert.equal(await box.kill(), true)
    assert.equal(await box.isRunning(), false)
    assert.equal(await Sandbox.kill(box.sandboxId), false)
  },
}

const outcome = {}
for (const [name, run] of Object.entries(cases)) {
  try {
    await run()
    outcome[name] = null
  } catch (error) {
    outcome[name] = String(error?.stack ?? error).slice(0, 3000)
  }
}
console.log('OUTCOME ' + JSON.stringify(outcome))
process.exit(0)
