// What the tests look at, installed before JupyterLab's own scripts. It only reads: acting is left to clicks and keys.
(() => {
    // Counts prompt changes and keeps what the kernel's status light showed. A wait that starts after its click could
    // otherwise miss a cell that ran, or a kernel that restarted, between two looks.
    const seen = { prompts: 0, lights: [] };
    new MutationObserver((records) => {
        for (const record of records) {
            const el = record.target instanceof Element ? record.target : record.target.parentElement;
            if (el?.closest('.jp-InputPrompt')) seen.prompts += 1;
            if (record.attributeName && el.matches('.jp-Notebook-ExecutionIndicator'))
                seen.lights.push(el.dataset.status);
        }
    }).observe(document, { subtree: true, childList: true, characterData: true, attributeFilter: ['data-status'] });

    const texts = (selector) => [...document.querySelectorAll(selector)].map((el) => el.innerText);

    const state = () => ({
        kernel: texts('.jp-KernelName')[0] ?? '',
        light: document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status ?? '',
        prompts: texts('.jp-Notebook .jp-InputPrompt').map((text) => text.replace(/:$/, '')),
        dialogs: texts('.jp-Dialog'),
        seen,
    });

    // Without the "[3]:" that stands beside some outputs.
    const outputText = (cell) => {
        const own = ':scope > .jp-Cell-outputWrapper > .jp-OutputArea > .jp-OutputArea-child > .jp-OutputArea-output';
        return [...cell.querySelectorAll(own)].map((el) => el.innerText.trim()).join('\n');
    };

    // Error outputs of cells come from the model, since a traceback and plain stderr are drawn alike. Output widgets
    // keep their model out of reach; there, stderr with a traceback in it counts.
    const errors = () => {
        const found = [];
        for (const panel of window.jupyterapp.shell.widgets('main'))
            for (const cell of panel.content?.widgets ?? [])
                for (const output of cell.model?.outputs?.toJSON() ?? [])
                    if (output.output_type === 'error')
                        found.push(output.traceback.join('\n') || `${output.ename}: ${output.evalue}`);
        const nested = texts('.jp-OutputArea .jp-OutputArea [data-mime-type="application/vnd.jupyter.stderr"]');
        found.push(...nested.filter((text) => text.includes('Traceback (most recent call last)')));
        return found.map((text) => text.replace(/\x1b\[[0-9;]*m/g, '').trim());
    };

    window.labTest = { state, outputText, errors };
})();
